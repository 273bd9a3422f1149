#include "text/merges.h"

#include <algorithm>
#include <functional>

namespace tandem {
namespace {

// Up to this many symbols a scan of all ranks per merge beats the heap.
constexpr std::size_t kShortSymbols = 40;

constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void Merges::apply(std::vector<TokenId>& ids, Scratch& scratch) const {
  if (ids.size() < 2) return;
  if (ids.size() <= kShortSymbols) {
    apply_short(ids, scratch.short_merges);
  } else {
    apply_long(ids, scratch);
  }
}

void Merges::apply_short(std::vector<TokenId>& ids, std::vector<Merge>& merges) const {
  // merges[i] is that of ids[i] with ids[i + 1].
  merges.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) merges.push_back(find(ids[i], ids[i + 1]));
  while (!merges.empty()) {
    const auto best =
        std::min_element(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == Merge::kNone) return;
    const auto i = static_cast<std::size_t>(best - merges.begin());
    ids[i] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    merges.erase(best);
    if (i < merges.size()) merges[i] = find(ids[i], ids[i + 1]);
    if (i > 0) merges[i - 1] = find(ids[i - 1], ids[i]);
  }
}

void Merges::apply_long(std::vector<TokenId>& ids, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  std::vector<std::uint64_t>& heap = scratch.heap;  // rank << 32 | position of the left symbol
  const auto count = static_cast<std::uint32_t>(ids.size());
  symbols.clear();
  symbols.reserve(count);
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    symbols.push_back({.id = ids[i],
                       .previous = i == 0 ? kEnd : i - 1,
                       .next = last ? kEnd : i + 1,
                       .with_next = last ? Merge{} : find(ids[i], ids[i + 1])});
    if (symbols[i].with_next.rank != Merge::kNone) {
      heap.push_back(std::uint64_t{symbols[i].with_next.rank} << 32U | i);
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto refresh = [&](std::uint32_t position) {
    Scratch::Symbol& symbol = symbols[position];
    symbol.with_next = symbol.next == kEnd ? Merge{} : find(symbol.id, symbols[symbol.next].id);
    if (symbol.with_next.rank == Merge::kNone) return;
    heap.push_back(std::uint64_t{symbol.with_next.rank} << 32U | position);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.front() >> 32U);
    const auto position = static_cast<std::uint32_t>(heap.front());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    Scratch::Symbol& left = symbols[position];
    // Stale when the pair has changed since: symbols only grow, so a pair never returns to an earlier rank.
    if (left.with_next.rank != rank) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = left.with_next.result;
    left.next = right.next;
    right.with_next = Merge{};
    if (left.next != kEnd) symbols[left.next].previous = position;
    refresh(position);
    if (left.previous != kEnd) refresh(left.previous);
  }
  ids.clear();
  for (std::uint32_t i = 0; i != kEnd; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace tandem
