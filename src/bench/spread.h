// The median, the smallest and the largest of a few measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tandem::bench {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// At least one value; of an even number the lower of the middle two.
inline Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[(values.size() - 1) / 2], values.front(), values.back()};
}

}  // namespace tandem::bench
