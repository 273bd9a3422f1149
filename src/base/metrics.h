// Counters, gauges and histograms in Prometheus' data model: the one writer of `GET /metrics`. A handle is a pointer:
// get it once at start, use it from any thread without a lookup. A default-made handle counts nothing, so a part works
// without a registry. A histogram takes an uncontended lock per observation; counters and gauges are atomics.
// The help text of a series says its unit and when it rises. Label values become series that live as long as the
// registry: never take them from clients.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace tandem {

class Counter final {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* series) : series_(series) {}
  void add(double amount = 1.0);  // a negative amount is ignored

 private:
  prometheus::Counter* series_ = nullptr;
};

class Gauge final {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}
  void set(double value);
  void add(double amount);

 private:
  prometheus::Gauge* series_ = nullptr;
};

class Histogram final {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}
  void observe(double value);

 private:
  prometheus::Histogram* series_ = nullptr;
};

// name = value, in any order.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Owns every series; outlives the handles it gives out. All calls are thread-safe. The same name and labels
// give the same series again. Every name begins with "tandem_" and has no colon, which is for recording rules. Another
// name, or one name for two kinds, is a broken invariant.
class MetricRegistry final {
 public:
  MetricRegistry();
  ~MetricRegistry();

  Counter counter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge gauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  // `bounds`: upper bounds of the buckets, rising; the bucket up to infinity is implied.
  Histogram histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                      const MetricLabels& labels = {});

  // Prometheus text format, version 0.0.4.
  std::string scrape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 1, 2 and 5 times the powers of ten, from `first` to `last`: bounds that people read and that two histograms share.
std::vector<double> round_bounds(double first, double last);

}  // namespace tandem
