// Convolution with a packed balanced matrix (isoscale.recipes.balanced.packed says what the format is).
//
// Lanes are pixels here. In an image with its padding, column (channel, dy, dx) of the matrix meets pixel p at
// offset(channel, dy, dx) + p: a kept weight is one broadcast and whole loads from where its column starts. Nothing is
// looked up by lane, and no patches are collected. With a stride the image is first divided into phases, so that what
// neighbouring outputs meet is neighbouring again.
//
// Every output is summed as kernel.cpp sums a row of the product with its patch: blocks ascending, columns ascending,
// one fused multiply-add each. All paths give those bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kLanes = 64;

struct Rows {
  const float* values;     // [blocks][keep][kLanes], from the first row of a tile
  const uint8_t* indices;  // the same shape; columns within the block
  int64_t blocks, width, keep;
};

// As Python passes it.
struct Window {
  int64_t channels, height, width;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A padded image in phases: [channels][stride y][stride x][lines][pitch].
struct Field {
  int64_t lines, pitch, out_height, out_width;

  explicit Field(const Window& w)
      : lines(ceil(w.height + 2 * w.padding[0], w.stride[0])),
        pitch(ceil(w.width + 2 * w.padding[1], w.stride[1])),
        out_height((w.height + 2 * w.padding[0] - w.dilation[0] * (w.kernel[0] - 1) - 1) / w.stride[0] + 1),
        out_width((w.width + 2 * w.padding[1] - w.dilation[1] * (w.kernel[1] - 1) - 1) / w.stride[1] + 1) {}

  int64_t phase() const { return lines * pitch; }
  // Outputs lie `pitch` apart from line to line; what is between them is computed and dropped.
  int64_t positions() const { return (out_height - 1) * pitch + out_width; }
};

void divide(const Window& w, const Field& f, const float* image, float* field) {
  std::memset(field, 0, sizeof(float) * w.channels * w.stride[0] * w.stride[1] * f.phase());
  for (int64_t channel = 0; channel < w.channels; ++channel)
    for (int64_t y = 0; y < w.height; ++y, image += w.width) {
      const int64_t line = y + w.padding[0];
      const int64_t of_line = (channel * w.stride[0] + line % w.stride[0]) * w.stride[1];
      float* to = field + of_line * f.phase() + line / w.stride[0] * f.pitch;
      if (w.stride[1] == 1)
        std::memcpy(to + w.padding[1], image, sizeof(float) * w.width);
      else
        for (int64_t phase = 0; phase < w.stride[1]; ++phase) {
          const int64_t skipped = std::max<int64_t>(0, ceil(w.padding[1] - phase, w.stride[1]));
          float* next = to + phase * f.phase() + skipped;
          for (int64_t x = phase + skipped * w.stride[1] - w.padding[1]; x < w.width; x += w.stride[1])
            *next++ = image[x];
        }
    }
}

void place_columns(const Window& w, const Field& f, int64_t* offsets) {
  for (int64_t channel = 0; channel < w.channels; ++channel)
    for (int64_t dy = 0; dy < w.kernel[0] * w.dilation[0]; dy += w.dilation[0])
      for (int64_t dx = 0; dx < w.kernel[1] * w.dilation[1]; dx += w.dilation[1]) {
        const int64_t phase = (channel * w.stride[0] + dy % w.stride[0]) * w.stride[1] + dx % w.stride[1];
        *offsets++ = phase * f.phase() + dy / w.stride[0] * f.pitch + dx / w.stride[1];
      }
}

// A tile is `kRows` neighbouring rows of a group by `kVectors` vectors of pixels: as many sums as registers hold.
template <int kRows, int kVectors>
void plain_tile(const Rows& m, const int64_t* offsets, const float* x, float* sum) {
  std::memset(sum, 0, sizeof(float) * kRows * kVectors);
  const float* value = m.values;
  const uint8_t* index = m.indices;
  for (int64_t block = 0; block < m.blocks; ++block, offsets += m.width)
    for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes)
      for (int row = 0; row < kRows; ++row) {
        const float* from = x + offsets[index[row]];
        for (int v = 0; v < kVectors; ++v)
          sum[row * kVectors + v] = std::fma(value[row], from[v], sum[row * kVectors + v]);
      }
}

#if defined(__x86_64__)

template <int kRows, int kVectors>
__attribute__((target("avx2,fma"))) void avx2_tile(const Rows& m, const int64_t* offsets, const float* x, float* sum) {
  __m256 sums[kRows][kVectors];
  for (auto& row : sums)
    for (auto& part : row) part = _mm256_setzero_ps();
  const float* value = m.values;
  const uint8_t* index = m.indices;
  for (int64_t block = 0; block < m.blocks; ++block, offsets += m.width)
    for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes)
      for (int row = 0; row < kRows; ++row) {
        const __m256 weight = _mm256_broadcast_ss(value + row);
        const float* from = x + offsets[index[row]];
        for (int v = 0; v < kVectors; ++v)
          sums[row][v] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(from + 8 * v), sums[row][v]);
      }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(sum + (row * kVectors + v) * 8, sums[row][v]);
}

template <int kRows, int kVectors>
__attribute__((target("avx512f"))) void avx512_tile(const Rows& m, const int64_t* offsets, const float* x, float* sum) {
  __m512 sums[kRows][kVectors];
  for (auto& row : sums)
    for (auto& part : row) part = _mm512_setzero_ps();
  const float* value = m.values;
  const uint8_t* index = m.indices;
  for (int64_t block = 0; block < m.blocks; ++block, offsets += m.width)
    for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes)
      for (int row = 0; row < kRows; ++row) {
        const __m512 weight = _mm512_set1_ps(value[row]);
        const float* from = x + offsets[index[row]];
        for (int v = 0; v < kVectors; ++v)
          sums[row][v] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(from + 16 * v), sums[row][v]);
      }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(sum + (row * kVectors + v) * 16, sums[row][v]);
}

#endif  // x86

struct Tile {
  int64_t rows, pixels;
  void (*run)(const Rows&, const int64_t*, const float*, float*);
};

constexpr int64_t kMaxSums = 256;
// From the widest to the narrowest, which is one vector. `rows` divide the lanes of a group.
constexpr Tile kPlain[] = {{2, 8, plain_tile<2, 8>}, {8, 1, plain_tile<8, 1>}};
#if defined(__x86_64__)
constexpr Tile kAvx2[] = {{2, 32, avx2_tile<2, 4>}, {4, 16, avx2_tile<4, 2>}, {8, 8, avx2_tile<8, 1>}};
constexpr Tile kAvx512[] = {
    {2, 128, avx512_tile<2, 8>}, {4, 64, avx512_tile<4, 4>}, {8, 32, avx512_tile<8, 2>}, {16, 16, avx512_tile<16, 1>}};
#endif

// One row's sums at positions first .. first + size, without what lies between lines.
void store(const float* sum, int64_t first, int64_t size, const Field& f, const float* bias, float* y) {
  int64_t line = first / f.pitch, column = first % f.pitch;
  for (int64_t done = 0; done < size; ++line, column = 0) {
    const int64_t run = std::min(f.pitch - column, size - done);
    const int64_t wanted = std::min(run, f.out_width - column);
    float* to = y + line * f.out_width + column;
    if (bias)
      for (int64_t i = 0; i < wanted; ++i) to[i] = sum[done + i] + *bias;
    else
      for (int64_t i = 0; i < wanted; ++i) to[i] = sum[done + i];
    done += run;
  }
}

template <size_t kTiles>
void sweep(const Tile (&tiles)[kTiles], const Rows& m, int64_t rows, const Field& f, const int64_t* offsets,
           const float* field, const float* bias, float* y) {
  const Tile* const last = tiles + kTiles - 1;
  float sum[kMaxSums];
  for (int64_t first = 0; first < f.positions();) {
    const int64_t left = f.positions() - first;
    const Tile* tile = tiles;
    while (tile != last && tile->pixels - left >= last->pixels) ++tile;  // no whole vector for nothing
    const int64_t size = std::min(left, tile->pixels);
    for (int64_t row = 0; row < rows; row += tile->rows) {
      const int64_t at = row / kLanes * m.blocks * m.keep * kLanes + row % kLanes;
      tile->run({m.values + at, m.indices + at, m.blocks, m.width, m.keep}, offsets, field + first, sum);
      for (int64_t r = 0; r < tile->rows && row + r < rows; ++r)
        store(sum + r * tile->pixels, first, size, f, bias ? bias + row + r : nullptr,
              y + (row + r) * f.out_height * f.out_width);
    }
    first += size;
  }
}

}  // namespace

extern "C" {

// x [images][channels][height][width] -> y [images][rows][out_height][out_width], plus bias [rows] if there is one.
// `offsets` and `field` are scratch: an element per column of the matrix, and one padded image in phases with 15
// elements more, which are read and not used.
void isoscale_balanced_convolve(const float* values, const uint8_t* indices, const float* x, const float* bias,
                                float* y, int64_t* offsets, float* field, int64_t rows, int64_t blocks, int64_t width,
                                int64_t keep, int64_t images, const int64_t* window, int path) {
  Window w;
  static_assert(sizeof w == 11 * sizeof(int64_t));
  std::memcpy(&w, window, sizeof w);
  const Field f(w);
  const Rows m{values, indices, blocks, width, keep};
  place_columns(w, f, offsets);
  for (int64_t image = 0; image < images; ++image) {
    divide(w, f, x, field);
#if defined(__x86_64__)
    if (path == 2)
      sweep(kAvx512, m, rows, f, offsets, field, bias, y);
    else if (path == 1)
      sweep(kAvx2, m, rows, f, offsets, field, bias, y);
    else
#endif
      sweep(kPlain, m, rows, f, offsets, field, bias, y);
    x += w.channels * w.height * w.width;
    y += rows * f.out_height * f.out_width;
  }
}
}
