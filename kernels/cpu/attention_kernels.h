// The entry points of attention for one instruction set: from KV element types to instantiations of the body.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/elements.h"
#include "tandem/backend.h"

namespace tandem::cpu {

template <class V>
void attend(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* next, float* scratch,
            float* partials) {
  switch (args.kv.layout.dtype) {
    case DType::kF16: return Attend<V, const Half*>(args, item, next, scratch).run(partials);
    case DType::kBF16: return Attend<V, const BFloat*>(args, item, next, scratch).run(partials);
    case DType::kF32: return Attend<V, const float*>(args, item, next, scratch).run(partials);
    case DType::kQ8_0: return Attend<V, Q8Row>(args, item, next, scratch).run(partials);
    default: TANDEM_CHECK(false, "KV memory holds f32, f16, bf16 or q8_0");
  }
}

template <class V>
void merge_chunks(const AttentionArgs& args, const AttentionItem& item, float* scratch, const float* partials) {
  const Queries<V> queries(args, item);
  const std::int64_t chunk_floats = queries.count() * queries.state();
  for (int c = 0; c < item.num_chunks; ++c) {
    queries.merge_chunk(c, partials + item.partial + c * chunk_floats, scratch);
  }
  queries.finish(scratch);
}

template <class V>
inline constexpr AttentionKernels kAttentionKernels = {.attend = attend<V>, .merge = merge_chunks<V>};

}  // namespace tandem::cpu
