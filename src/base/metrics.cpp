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

std::vector<double> exponential_bounds(double first, double factor, std::size_t count) {
  std::vector<double> bounds(count);
  for (double& bound : bounds) {
    bound = first;
    first *= factor;
  }
  return bounds;
}

}  // namespace tandem
