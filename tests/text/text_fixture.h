// Reading the fixtures that tests/support/text_fixtures.py makes.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tandem/tokenizer.h"

namespace tandem {

inline nlohmann::json read_fixture(const std::string& name) {
  const std::string path = std::string(TANDEM_TEST_DATA) + "/text/" + name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

inline std::vector<PreTokenizerStep> steps_of(const nlohmann::json& steps) {
  std::vector<PreTokenizerStep> out;
  for (const std::string step : steps) {
    if (step == "individual digits") {
      out.push_back({.kind = PreTokenizerStep::Kind::kIndividualDigits, .pattern = {}});
    } else {
      out.push_back({.kind = PreTokenizerStep::Kind::kSplit, .pattern = step});
    }
  }
  return out;
}

}  // namespace tandem
