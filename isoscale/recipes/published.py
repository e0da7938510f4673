"""What EasyScale's authors measured on GPUs for the families they trained, to stand beside our own figures.

Ratios computed from the CSV files of the artifact of "EasyScale: Accuracy-consistent Elastic Training for Deep
Learning" (arXiv 2208.14228). Their models are larger than the recipes and their devices are GPUs: the figures say
what the same promise cost them, not what it should cost here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EASYSCALE", "GpuFigures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One model's figures; tuples are V100, P100, T4."""

    model: str
    #: time of a turn with switching of contexts over without, 8 logical workers on one V100
    switch: float
    #: step time over that of plain DDP at their D1, our `elastic`
    elastic: tuple[float, float, float]
    #: the same at D1 + D2, our `heterogeneous`
    heterogeneous: tuple[float, float, float]


#: by name of the recipe of the same family
EASYSCALE = {
    "shufflenet": GpuFigures(
        model="ShuffleNetV2", switch=1.0112, elastic=(1.00, 0.91, 1.00), heterogeneous=(2.17, 2.39, 1.68)
    ),
    "resnet": GpuFigures(model="ResNet50", switch=0.9972, elastic=(1.07, 1.06, 1.08), heterogeneous=(2.34, 2.79, 2.01)),
    "vgg": GpuFigures(model="VGG19", switch=1.0006, elastic=(1.52, 1.72, 1.75), heterogeneous=(4.38, 5.47, 4.21)),
    "yolo": GpuFigures(model="YOLOv3", switch=0.9949, elastic=(0.97, 1.02, 0.94), heterogeneous=(1.16, 1.40, 1.19)),
    "neumf": GpuFigures(model="NeuMF", switch=0.9991, elastic=(1.02, 0.96, 1.01), heterogeneous=(1.04, 0.94, 1.08)),
    "bert": GpuFigures(model="BERT", switch=0.9998, elastic=(1.00, 0.99, 1.00), heterogeneous=(1.00, 0.99, 0.98)),
    "electra": GpuFigures(model="ELECTRA", switch=1.0197, elastic=(1.00, 1.00, 1.01), heterogeneous=(1.00, 0.99, 0.98)),
    "swin": GpuFigures(model="Swin", switch=1.0018, elastic=(1.00, 1.00, 0.99), heterogeneous=(1.04, 1.00, 1.02)),
}
