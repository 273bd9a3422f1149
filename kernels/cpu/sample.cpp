// Parallel over rows. A greedy row reads its logits once or twice; a drawn one up to four times, and orders only as
// many tokens as the draw needs: the kept sets (top-k, nucleus, min-p) are all prefixes of the descending order, and
// partial selection finds the end of a prefix without sorting it.
#include "kernels/cpu/sample.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "base/status.h"
#include "kernels/cpu/philox.h"

namespace tandem::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// How far below the largest logit a draw looks for its token, a step at a time. The first holds most of the mass
// of a language model's row in few tokens; below the last a weight is 0.
constexpr float kCutoffs[] = {-4.0F, -10.0F, -87.3F};
constexpr float kFar = kCutoffs[2];

struct Undo {
  TokenId token = 0;
  float logit = 0.0F;
};

bool before(const Candidate& a, const Candidate& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

double mass_of(std::span<const Candidate> candidates) {
  double mass = 0.0;
  for (const Candidate& candidate : candidates) mass += static_cast<double>(candidate.weight);
  return mass;
}

// Moves the smallest prefix of the descending order whose weights reach `mass` to the front, its last token last,
// and returns its length: at least 1, all when rounding leaves the mass out of reach.
std::size_t select_mass(std::span<Candidate> all, double mass) {
  constexpr std::size_t kSortable = 32;
  std::size_t begin = 0;
  std::size_t end = all.size();
  while (end - begin > kSortable) {
    const std::size_t half = (end - begin) / 2;
    const auto part = all.subspan(begin, end - begin);
    std::nth_element(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(half), part.end(), before);
    const double left = mass_of(part.first(half));
    if (left >= mass) {
      end = begin + half;
    } else {
      mass -= left;
      begin += half;
    }
  }
  const auto part = all.subspan(begin, end - begin);
  std::sort(part.begin(), part.end(), before);
  for (std::size_t i = 0; i < part.size(); ++i) {
    mass -= static_cast<double>(part[i].weight);
    if (mass <= 0.0) return begin + i + 1;
  }
  return end;
}

std::span<Candidate> keep_largest(std::span<Candidate> candidates, std::size_t count) {
  if (candidates.size() <= count) return candidates;
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(candidates.begin(), end, candidates.end(), before);
  return candidates.first(count);
}

std::span<Candidate> keep_above(std::span<Candidate> candidates, float x) {
  const auto end = std::partition(candidates.begin(), candidates.end(), [x](const Candidate& c) { return c.x >= x; });
  return candidates.first(static_cast<std::size_t>(end - candidates.begin()));
}

// Logits of one row, with the ones it changed so that they can be put back.
class RowSampler final {
 public:
  RowSampler(const SampleScans& scans, const SampleRow& row, float* logits, std::int64_t vocab, std::byte* scratch)
      : scans_(scans),
        row_(row),
        logits_(logits),
        vocab_(vocab),
        candidates_(reinterpret_cast<Candidate*>(scratch)),
        undo_(reinterpret_cast<Undo*>(candidates_ + vocab)) {}

  Sampled run() {
    Sampled out;
    const TokenLogprob best = scans_.largest(logits_, vocab_);
    const bool scored = row_.target >= 0;
    if (scored) {
      out.token = best.token;
    } else if (best.logprob == -kInfinity) {
      out.token = -1;  // no logit is a number: there is nothing to sample from
    } else if (unchanged()) {
      out.token = choose(best);
    } else {
      change();
      out.token = choose(scans_.largest(logits_, vocab_));
      while (num_undo_ > 0) {
        --num_undo_;
        logits_[undo_[num_undo_].token] = undo_[num_undo_].logit;
      }
    }
    if (scored || row_.wants_logprob || row_.num_top_logprobs > 0) {
      score(best.logprob, scored ? row_.target : out.token, out);
    }
    return out;
  }

 private:
  // Log-probabilities of the model, so from the logits as they came.
  void score(float largest, TokenId token, Sampled& out) const {
    const bool finite = std::isfinite(largest);
    const double normaliser =
        finite ? static_cast<double>(largest) + std::log(scans_.sum_weights(logits_, vocab_, largest, 1.0F)) : 0.0;
    const auto logprob = [&](float logit) {
      if (!finite) return logit == kInfinity ? 0.0F : -kInfinity;
      return logit > -kInfinity ? static_cast<float>(static_cast<double>(logit) - normaliser) : -kInfinity;
    };
    if (row_.target >= 0 || row_.wants_logprob) out.logprob = in_vocab(token) ? logprob(logits_[token]) : -kInfinity;
    const int count = std::min(row_.num_top_logprobs, static_cast<int>(kMaxTopLogprobs));
    if (count > 0) out.num_top = scans_.top(logits_, vocab_, count, out.top);
    for (int i = 0; i < out.num_top; ++i) out.top[i].logprob = logprob(out.top[i].logprob);
  }

  bool in_vocab(TokenId token) const { return token >= 0 && token < vocab_; }

  bool unchanged() const {
    const bool penalised =
        row_.repetition_penalty != 1.0F || row_.presence_penalty != 0.0F || row_.frequency_penalty != 0.0F;
    return row_.bias.empty() && (row_.counts.empty() || !penalised);
  }

  void change(TokenId token, float logit) {
    undo_[num_undo_++] = {token, logits_[token]};
    logits_[token] = logit;
  }

  // Bias, then the repetition penalty over every token seen, then presence and frequency over the generated ones.
  void change() {
    for (const TokenLogprob& bias : row_.bias) {
      if (in_vocab(bias.token)) change(bias.token, logits_[bias.token] + bias.logprob);
    }
    for (const TokenCount& count : row_.counts) {
      if (!in_vocab(count.token)) continue;
      float logit = logits_[count.token];
      if (row_.repetition_penalty != 1.0F) {
        logit = logit > 0.0F ? logit / row_.repetition_penalty : logit * row_.repetition_penalty;
      }
      if (count.output_count > 0) {
        logit -= row_.presence_penalty;
        logit -= row_.frequency_penalty * static_cast<float>(count.output_count);
      }
      change(count.token, logit);
    }
  }

  TokenId choose(const TokenLogprob& best) {
    const bool greedy = !(row_.temperature > 0.0F);
    return greedy || !std::isfinite(best.logprob) || row_.top_k == 1 ? best.token : draw(best.logprob);
  }

  TokenId draw(float largest) {
    const bool limited = row_.top_k > 0 && row_.top_k < vocab_;
    const bool nucleus = row_.top_p < 1.0F;
    const float floor = row_.min_p > 0.0F ? std::min(0.0F, std::log(row_.min_p)) : -kInfinity;
    const double u = uniform(row_.seed, row_.position);
    const double total = limited ? 0.0 : scans_.sum_weights(logits_, vocab_, largest, row_.temperature);
    for (const float cutoff : kCutoffs) {
      const TokenId token = draw_from(largest, cutoff, limited, nucleus, floor, total, u);
      if (token >= 0) return token;
    }
    TANDEM_CHECK(false, "the last cutoff leaves no token out");
  }

  // Draws among the tokens with x >= cutoff, or returns -1 when the answer depends on one below.
  TokenId draw_from(float largest, float cutoff, bool limited, bool nucleus, float floor, double total, double u) {
    const std::int64_t count = scans_.collect(logits_, vocab_, largest, row_.temperature, cutoff, candidates_);
    std::span<Candidate> kept(candidates_, static_cast<std::size_t>(count));
    const bool all = cutoff <= kFar;
    bool complete = all || floor >= cutoff;  // no token that is kept in the end is missing
    if (limited) {
      const auto limit = static_cast<std::size_t>(row_.top_k);
      if (kept.size() < limit && !all) return -1;
      kept = keep_largest(kept, limit);
      total = mass_of(kept);
      complete = true;
    }
    if (nucleus) {
      const double wanted = std::max(0.0, static_cast<double>(row_.top_p)) * total;
      if (mass_of(kept) < wanted && !all) return -1;
      kept = kept.first(select_mass(kept, wanted));
      complete = true;
    }
    if (floor > -kInfinity) {
      if (!complete) return -1;
      kept = keep_above(kept, floor);
    }
    const double mass = mass_of(kept);
    const double target = u * (complete ? mass : total);
    if (!complete && target > mass) return -1;
    return kept[select_mass(kept, target) - 1].id;
  }

  const SampleScans& scans_;
  const SampleRow& row_;
  float* const logits_;
  const std::int64_t vocab_;
  Candidate* const candidates_;  // [vocab]
  Undo* const undo_;             // [bias + counts]
  std::size_t num_undo_ = 0;
};

}  // namespace

void sample_rows(const SampleArgs& args, Team& team, const SampleScans& scans) {
  const auto rows = static_cast<std::int64_t>(args.rows.size());
  TANDEM_CHECK(args.out.size() >= args.rows.size() && args.logits.rows >= rows && args.logits.cols > 0,
               "sample takes a row of logits and an output for every row asked for");
  std::size_t changes = 1;
  for (const SampleRow& row : args.rows) changes = std::max(changes, row.bias.size() + row.counts.size());
  const std::size_t bytes =
      static_cast<std::size_t>(args.logits.cols) * sizeof(Candidate) + std::bit_ceil(changes) * sizeof(Undo);
  std::atomic<std::int64_t> next{0};
  const auto work = [&](std::byte* scratch) {
    for (std::int64_t i = next++; i < rows; i = next++) {
      const auto at = static_cast<std::size_t>(i);
      args.out[at] = RowSampler(scans, args.rows[at], args.logits.f32(i), args.logits.cols, scratch).run();
    }
  };
  if (rows <= 1 || team.active() == 1) {
    work(team.worker_scratch(0, bytes));
    return;
  }
  constexpr int kMaxWorkers = 1024;
  std::byte* scratch[kMaxWorkers];
  TANDEM_CHECK(team.active() <= kMaxWorkers, "a team has at most 1024 workers");
  for (int w = 0; w < team.active(); ++w) scratch[w] = team.worker_scratch(w, bytes);
  team.run([&](int worker, int) { work(scratch[worker]); });
}

}  // namespace tandem::cpu
