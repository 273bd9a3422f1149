#include "sched/running_sequences.h"

#include "base/status.h"

namespace tandem {

std::vector<Sequence*> RunningSequences::all() const {
  std::vector<Sequence*> sequences;
  sequences.reserve(size());
  for (const auto& list : lists_) sequences.insert(sequences.end(), list.begin(), list.end());
  return sequences;
}

void RunningSequences::add(Sequence& sequence) {
  TANDEM_CHECK(!sequence.place, "a sequence is admitted once");
  const Phase phase = sequence.phase();
  auto& list = lists_[index(phase)];
  const auto num_blocks = static_cast<std::uint32_t>(sequence.lease.blocks().size());
  sequence.place = {phase, list.size(), num_blocks};
  list.push_back(&sequence);
  num_blocks_[index(phase)] += num_blocks;
}

void RunningSequences::remove(Sequence& sequence) {
  TANDEM_CHECK(sequence.place.has_value(), "only an admitted sequence is removed");
  auto& list = lists_[index(sequence.place->phase)];
  num_blocks_[index(sequence.place->phase)] -= sequence.place->num_blocks;
  list[sequence.place->index] = list.back();
  list[sequence.place->index]->place->index = sequence.place->index;
  list.pop_back();
  sequence.place.reset();
}

void RunningSequences::update(Sequence& sequence) {
  TANDEM_CHECK(sequence.place.has_value(), "only an admitted sequence is updated");
  if (sequence.phase() != sequence.place->phase) {
    remove(sequence);
    return add(sequence);
  }
  const auto num_blocks = static_cast<std::uint32_t>(sequence.lease.blocks().size());
  num_blocks_[index(sequence.place->phase)] += num_blocks - sequence.place->num_blocks;
  sequence.place->num_blocks = num_blocks;
}

}  // namespace tandem
