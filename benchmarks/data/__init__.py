"""How fast isoscale reads data, over stock DataLoaders and plain iterators of the same samples."""
