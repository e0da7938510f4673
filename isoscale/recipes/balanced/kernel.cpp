// The product of a packed balanced matrix with vectors (isoscale.recipes.balanced.packed says what the format is).
//
// 64 rows form a group, and every SIMD lane is a row: the n-th kept values of a group's rows lie side by side, so that
// loads are whole cache lines and nothing is summed across lanes. All rows of a group read the same block of x, which
// is small enough to live in registers; there a permutation looks up 16 elements in one instruction, where a gather
// from memory would take 16 loads.
//
// Every row is summed in one order: blocks ascending, columns ascending within a block, one fused multiply-add each.
// So all paths below give the same bits, on every machine.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kLanes = 64;

struct Matrix {
  const float* values;     // [groups][blocks][keep][kLanes]
  const uint8_t* indices;  // the same shape; columns within the block
  int64_t rows, blocks, width, keep;

  int64_t groups() const { return (rows + kLanes - 1) / kLanes; }
};

// The sums of a group as far as the matrix has rows.
void store(const Matrix& m, int64_t group, const float* sum, const float* bias, float* y) {
  const int64_t first = group * kLanes, count = std::min(kLanes, m.rows - first);
  if (bias)
    for (int64_t lane = 0; lane < count; ++lane) y[first + lane] = sum[lane] + bias[first + lane];
  else
    std::memcpy(y + first, sum, sizeof(float) * count);
}

void plain(const Matrix& m, const float* x, const float* bias, float* y) {
  const float* value = m.values;
  const uint8_t* index = m.indices;
  for (int64_t group = 0; group < m.groups(); ++group) {
    float sum[kLanes] = {};
    for (int64_t block = 0; block < m.blocks; ++block) {
      const float* segment = x + block * m.width;
      for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane)
          sum[lane] = std::fma(value[lane], segment[index[lane]], sum[lane]);
    }
    store(m, group, sum, bias, y);
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) void avx2(const Matrix& m, const float* x, const float* bias, float* y) {
  constexpr int kParts = kLanes / 8;
  const float* value = m.values;
  const uint8_t* index = m.indices;
  for (int64_t group = 0; group < m.groups(); ++group) {
    __m256 sum[kParts];
    for (auto& part : sum) part = _mm256_setzero_ps();
    for (int64_t block = 0; block < m.blocks; ++block) {
      const float* segment = x + block * m.width;
      for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes)
        for (int part = 0; part < kParts; ++part) {
          const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(index + 8 * part));
          const __m256 taken = _mm256_i32gather_ps(segment, _mm256_cvtepu8_epi32(bytes), 4);
          sum[part] = _mm256_fmadd_ps(_mm256_loadu_ps(value + 8 * part), taken, sum[part]);
        }
    }
    float sums[kLanes];
    for (int part = 0; part < kParts; ++part) _mm256_storeu_ps(sums + 8 * part, sum[part]);
    store(m, group, sums, bias, y);
  }
}

// One group of rows with `kBatch` vectors, whose blocks take `kPairs` pairs of registers each: up to 32 * kPairs columns.
template <int kPairs, int kBatch>
__attribute__((target("avx512f"))) void avx512(const Matrix& m, int64_t group, const float* x, const float* bias,
                                               float* y) {
  constexpr int kParts = kLanes / 16;
  const int64_t columns = m.blocks * m.width;
  const float* value = m.values + group * m.blocks * m.keep * kLanes;
  const uint8_t* index = m.indices + group * m.blocks * m.keep * kLanes;
  __mmask16 within[2 * kPairs];  // x ends with its last block: do not read past it
  for (int half = 0; half < 2 * kPairs; ++half) {
    const int64_t left = m.width - 16 * half;
    within[half] = left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0;
  }
  __m512 sum[kBatch][kParts];
  for (auto& row : sum)
    for (auto& part : row) part = _mm512_setzero_ps();
  for (int64_t block = 0; block < m.blocks; ++block) {
    __m512 table[kBatch][2 * kPairs];
    for (int b = 0; b < kBatch; ++b)
      for (int half = 0; half < 2 * kPairs; ++half)
        table[b][half] = _mm512_maskz_loadu_ps(within[half], x + b * columns + block * m.width + 16 * half);
    for (int64_t n = 0; n < m.keep; ++n, value += kLanes, index += kLanes) {
      for (int part = 0; part < kParts; ++part) {
        const __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(index + 16 * part)));
        const __m512 weight = _mm512_loadu_ps(value + 16 * part);
        for (int b = 0; b < kBatch; ++b) {
          __m512 taken = _mm512_permutex2var_ps(table[b][0], at, table[b][1]);  // looks at the low 5 bits only
          if constexpr (kPairs > 1) {
            const __mmask16 bit5 = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
            taken = _mm512_mask_blend_ps(bit5, taken, _mm512_permutex2var_ps(table[b][2], at, table[b][3]));
          }
          if constexpr (kPairs > 2) {
            const __mmask16 bit5 = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
            const __mmask16 bit6 = _mm512_test_epi32_mask(at, _mm512_set1_epi32(64));
            const __m512 third = _mm512_permutex2var_ps(table[b][4], at, table[b][5]);
            const __m512 fourth = _mm512_permutex2var_ps(table[b][6], at, table[b][7]);
            taken = _mm512_mask_blend_ps(bit6, taken, _mm512_mask_blend_ps(bit5, third, fourth));
          }
          sum[b][part] = _mm512_fmadd_ps(weight, taken, sum[b][part]);
        }
      }
    }
  }
  for (int b = 0; b < kBatch; ++b) {
    float sums[kLanes];
    for (int part = 0; part < kParts; ++part) _mm512_storeu_ps(sums + 16 * part, sum[b][part]);
    store(m, group, sums, bias, y + b * m.rows);
  }
}

// Group by group: its values come from memory once and stay in a cache for all vectors.
template <int kPairs>
void avx512_batches(const Matrix& m, const float* x, const float* bias, float* y, int64_t batch) {
  const int64_t columns = m.blocks * m.width;
  for (int64_t group = 0; group < m.groups(); ++group) {
    int64_t b = 0;
    for (; batch - b >= 4; b += 4) avx512<kPairs, 4>(m, group, x + b * columns, bias, y + b * m.rows);
    for (; b < batch; ++b) avx512<kPairs, 1>(m, group, x + b * columns, bias, y + b * m.rows);
  }
}

#endif  // x86

}  // namespace

extern "C" {

// The fastest path that this processor can take: 0 plain, 1 AVX2, 2 AVX-512.
int isoscale_balanced_best_path() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// y [batch][rows] = x [batch][blocks * width] times the transposed matrix, plus bias [rows] if there is one.
void isoscale_balanced_multiply(const float* values, const uint8_t* indices, const float* x, const float* bias,
                                float* y, int64_t rows, int64_t blocks, int64_t width, int64_t keep, int64_t batch,
                                int path) {
  const Matrix m{values, indices, rows, blocks, width, keep};
#if defined(__x86_64__)
  if (path == 2 && width <= 32) return avx512_batches<1>(m, x, bias, y, batch);
  if (path == 2 && width <= 64) return avx512_batches<2>(m, x, bias, y, batch);
  if (path == 2 && width <= 128) return avx512_batches<4>(m, x, bias, y, batch);
  const auto one = path >= 1 ? avx2 : plain;
#else
  const auto one = plain;
#endif
  for (int64_t b = 0; b < batch; ++b, x += blocks * width, y += rows) one(m, x, bias, y);
}
}
