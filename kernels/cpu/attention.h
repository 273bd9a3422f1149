// How attention is cut into work, the same for every instruction set; the arithmetic is attention_body.h.
//
// A query's keys are read in tiles of 32 and summed up in chunks of 256, both aligned to absolute positions: an
// online softmax runs inside a chunk, and the chunks' states are merged in ascending order. So a row's bits depend
// on its own keys alone: not on the rows beside it, on how the prompt was cut, or on which thread took a chunk.
#pragma once

#include <cstdint>

#include "kernels/cpu/team.h"
#include "tandem/backend.h"

namespace tandem::cpu {

inline constexpr int kTileKeys = 32;
inline constexpr int kChunkKeys = 256;
// Query heads x rows that share one pass over the keys, about.
inline constexpr int kItemQueries = 64;
// From this many queries on, a tile's keys are transposed and widened once for all of them.
inline constexpr int kWideQueries = 12;
inline constexpr int kMaxHeadDim = 256;

// The rows [first_row, first_row + num_rows) of a sequence, for the query heads of one kv head, over one chunk or all.
struct AttentionItem {
  std::int32_t sequence = 0;
  std::int32_t kv_head = 0;
  std::int32_t first_row = 0;  // within the sequence
  std::int32_t num_rows = 0;
  std::int32_t chunk = 0;       // of a split one; a whole item runs all
  std::int32_t num_chunks = 0;  // of the rows' keys
  std::int64_t partial = -1;    // >= 0: split; where its chunk's states go in the partial states (floats)
};

// A query's running softmax: the weighted sum of values, 16 partial sums of weights, the largest score (in all
// 16 places), as floats one after the other.
inline std::int64_t padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
inline std::int64_t state_floats(int head_dim) { return padded_dim(head_dim) + 32; }
// A head: `full` vectors of 16 dimensions and, when `half_tail`, one of 8; rows in scratch are `padded` apart.
struct HeadShape {
  explicit HeadShape(int head_dim)
      : dim(head_dim), full(head_dim / 16), half_tail(head_dim % 16 != 0), padded(padded_dim(head_dim)) {}
  int dim;
  int full;
  bool half_tail;
  std::int64_t padded;
};

// Scratch of one worker.
std::int64_t attention_scratch_floats(int max_queries, int head_dim);

struct AttentionKernels {
  // Runs the item and writes its rows of `out`, or its chunk's states to `partials`; fetches the first rows of `next`
  // (or null) towards the end.
  void (*attend)(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch,
                 float* partials);
  // Merges the states of all chunks, given the item of chunk 0 of a split, and writes the rows.
  void (*merge)(const AttentionArgs& args, const AttentionItem& item, float* scratch, const float* partials);
};

void run_attention(const AttentionArgs& args, Team& team, const AttentionKernels& kernels);

}  // namespace tandem::cpu
