#include "base/metrics.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "base/status.h"
#include "fmt/core.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace tandem {
namespace {

template <class Series, class... Args>
Series* add_series(prometheus::Registry& registry, std::string_view name, std::string_view help,
                   const MetricLabels& labels, const Args&... args) {
  const bool ours = name.starts_with("tandem_") && name.find(':') == std::string_view::npos;
  TANDEM_CHECK(ours, fmt::format("metric {} begins with tandem_ and has no colon", name));
  try {
    prometheus::Family<Series>& family =
        prometheus::detail::Builder<Series>().Name(std::string(name)).Help(std::string(help)).Register(registry);
    return &family.Add({labels.begin(), labels.end()}, args...);
  } catch (const std::exception& error) {
    TANDEM_CHECK(false, fmt::format("metric {} can be registered: {}", name, error.what()));
  }
}

}  // namespace

void Counter::add(double amount) {
  if (series_ != nullptr) series_->Increment(amount);
}

void Gauge::set(double value) {
  if (series_ != nullptr) series_->Set(value);
}

void Gauge::add(double amount) {
  if (series_ != nullptr) series_->Increment(amount);
}

void Histogram::observe(double value) {
  if (series_ != nullptr) series_->Observe(value);
}

struct MetricRegistry::State {
  prometheus::Registry registry;
};

MetricRegistry::MetricRegistry() : state_(std::make_unique<State>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter MetricRegistry::counter(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return Counter(add_series<prometheus::Counter>(state_->registry, name, help, labels));
}

Gauge MetricRegistry::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return Gauge(add_series<prometheus::Gauge>(state_->registry, name, help, labels));
}

Histogram MetricRegistry::histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                                    const MetricLabels& labels) {
  const bool rising = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  TANDEM_CHECK(rising, fmt::format("the bucket bounds of metric {} rise", name));
  return Histogram(add_series<prometheus::Histogram>(state_->registry, name, help, labels, bounds));
}

std::string MetricRegistry::scrape() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

std::vector<double> round_bounds(double first, double last) {
  std::vector<double> bounds;
  // Each bound is one exact product or one quotient, so that it prints as it is written here: 0.005, not
  // 0.0050000000000000001.
  const auto add = [&](double bound) {
    if (bound >= first && bound <= last) bounds.push_back(bound);
  };
  for (double power = 1e12; power > 1; power /= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) add(digit / power);
  }
  for (double power = 1; power <= 1e12; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) add(digit * power);
  }
  return bounds;
}

}  // namespace tandem
