#include "sched/suspects.h"

#include <algorithm>

namespace tandem {

void Suspects::suspect(Sequence& sequence, std::uint32_t group) {
  if (sequence.suspect_group == 0) suspects_.push_back(&sequence);
  sequence.suspect_group = group;
}

void Suspects::split(std::span<Sequence* const> step) {
  const std::size_t half = (step.size() + 1) / 2;
  for (std::size_t index = 0; index < step.size(); ++index) {
    suspect(*step[index], last_group_ + (index < half ? 1 : 2));
    step[index]->lone_losses = 0;
  }
  last_group_ += 2;
}

Sequence* Suspects::lost(std::span<Sequence* const> step) {
  if (step.size() != 1) {
    split(step);
    return nullptr;
  }
  Sequence& alone = *step.front();
  suspect(alone, ++last_group_);
  return ++alone.lone_losses >= kMaxLoneLosses ? &alone : nullptr;
}

Sequence* Suspects::failed(std::span<Sequence* const> step) {
  if (step.size() == 1) return step.front();
  split(step);
  return nullptr;
}

void Suspects::clear(Sequence& sequence) {
  if (sequence.suspect_group == 0) return;
  std::erase(suspects_, &sequence);
  sequence.suspect_group = 0;
  sequence.lone_losses = 0;
}

std::uint32_t Suspects::next_group(const LaneDuty& duty) const {
  const auto next = std::ranges::find_if(suspects_, [&](const Sequence* sequence) {
    return sequence->place && !sequence->lane && (sequence->decoding() ? duty.decode : duty.prefill);
  });
  return next == suspects_.end() ? 0 : (*next)->suspect_group;
}

}  // namespace tandem
