#include "base/metrics.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace tandem {
namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, scrape_is_prometheus_text) {
  MetricRegistry registry;
  Counter requests = registry.counter("tandem_requests_total", "Requests seen.", {{"code", "200"}});
  Gauge running = registry.gauge("tandem_running", "Running sequences.");
  Histogram step = registry.histogram("tandem_step_seconds", "Step time.", {0.5, 1.0});
  requests.add();
  requests.add(2);
  requests.add(-5);
  running.set(7);
  running.add(-3);
  for (const double value : {0.25, 0.5, 0.75, 3.0}) step.observe(value);

  const std::string text = registry.scrape();
  for (const char* line : {"# HELP tandem_requests_total Requests seen.", "# TYPE tandem_requests_total counter",
                           "tandem_requests_total{code=\"200\"} 3", "# TYPE tandem_running gauge", "tandem_running 4",
                           "# TYPE tandem_step_seconds histogram", "tandem_step_seconds_count 4",
                           "tandem_step_seconds_sum 4.5", "tandem_step_seconds_bucket{le=\"0.5\"} 2",
                           "tandem_step_seconds_bucket{le=\"1\"} 3", "tandem_step_seconds_bucket{le=\"+Inf\"} 4"}) {
    EXPECT_TRUE(has_line(text, line)) << line << "\nin\n" << text;
  }
}

TEST(Metrics, the_same_name_and_labels_are_one_series) {
  MetricRegistry registry;
  registry.counter("tandem_hits", "Hits.", {{"a", "1"}, {"b", "2"}}).add();
  registry.counter("tandem_hits", "Hits.", {{"b", "2"}, {"a", "1"}}).add();
  registry.counter("tandem_hits", "Hits.", {{"a", "2"}, {"b", "2"}}).add();
  const std::string text = registry.scrape();
  EXPECT_TRUE(has_line(text, "tandem_hits{a=\"1\",b=\"2\"} 2")) << text;
  EXPECT_TRUE(has_line(text, "tandem_hits{a=\"2\",b=\"2\"} 1")) << text;
  EXPECT_EQ(text.find("# TYPE tandem_hits"), text.rfind("# TYPE tandem_hits"));
}

TEST(Metrics, label_values_are_escaped) {
  MetricRegistry registry;
  registry.counter("tandem_named", "Named.", {{"model", "a\"b\\c\nd"}}).add();
  EXPECT_TRUE(has_line(registry.scrape(), R"(tandem_named{model="a\"b\\c\nd"} 1)"));
}

TEST(Metrics, handles_without_a_registry_do_nothing) {
  Counter().add();
  Gauge().set(1);
  Gauge().add(1);
  Histogram().observe(1);
}

TEST(Metrics, threads_lose_no_count) {
  MetricRegistry registry;
  Counter counter = registry.counter("tandem_n", "N.");
  Histogram histogram = registry.histogram("tandem_h", "H.", {1});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([counter, histogram]() mutable {
      for (int i = 0; i < 1000; ++i) {
        counter.add();
        histogram.observe(0.5);
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(registry.scrape().empty());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(has_line(registry.scrape(), "tandem_n 4000"));
  EXPECT_TRUE(has_line(registry.scrape(), "tandem_h_count 4000"));
}

TEST(Metrics, round_bounds_are_printed_as_they_are_read) {
  EXPECT_EQ(round_bounds(1, 100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(round_bounds(0.002, 1), (std::vector<double>{0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}));
  MetricRegistry registry;
  registry.histogram("tandem_round", "R.", round_bounds(0.0001, 5000));
  const std::string text = registry.scrape();
  for (const char* bound : {"0.0001", "0.0002", "0.0005", "0.001", "0.05", "0.2", "1", "2000", "5000"}) {
    EXPECT_TRUE(has_line(text, std::string("tandem_round_bucket{le=\"") + bound + "\"} 0")) << bound << "\n" << text;
  }
}

TEST(MetricsDeathTest, names_the_format_cannot_carry_are_broken_invariants) {
  MetricRegistry registry;
  registry.counter("tandem_taken", "T.");
  EXPECT_DEATH(registry.gauge("tandem_taken", "T."), "metric tandem_taken");
  EXPECT_DEATH(registry.counter("tandem_has space", "T."), "metric tandem_has space");
  EXPECT_DEATH(registry.counter("tandem_bad_label", "T.", {{"a-b", "1"}}), "metric tandem_bad_label");
  EXPECT_DEATH(registry.histogram("tandem_falling", "T.", {2, 1}), "metric tandem_falling");
  EXPECT_DEATH(registry.counter("hits", "H."), "metric hits");
  EXPECT_DEATH(registry.counter("tandem:hits", "H."), "metric tandem:hits");
  EXPECT_DEATH(registry.counter("tandem_rate:hits", "H."), "metric tandem_rate:hits");
}

}  // namespace
}  // namespace tandem
