#include "memory/kv_lease.h"

#include <utility>

#include "memory/kv_pool.h"

namespace tandem {

KvLease& KvLease::operator=(KvLease&& other) noexcept {
  KvLease(std::move(other)).swap(*this);
  return *this;
}

KvLease::~KvLease() {
  if (pool_ != nullptr) pool_->give_back(std::move(*this));
}

void KvLease::swap(KvLease& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(sequence_, other.sequence_);
  std::swap(blocks_, other.blocks_);
  std::swap(num_cached_, other.num_cached_);
}

}  // namespace tandem
