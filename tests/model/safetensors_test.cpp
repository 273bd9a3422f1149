// One .safetensors file: what a good one reads as, and every header that must not (kind safetensors-corrupt).
#include "model/safetensors.h"

#include <cstring>
#include <random>

#include "base/status.h"
#include "gtest/gtest.h"
#include "model/temp_folder.h"

namespace tandem {
namespace {

using testing::MemoryFile;
using testing::TempFolder;

std::string file_of(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

// A header of whole 8 bytes, so that the data is aligned: "a" is [2, 3] F32, "b" is [4] BF16.
constexpr std::string_view kGood = R"({"__metadata__":{"format":"pt"},)"
                                   R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
                                   R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}        )";

TEST(Safetensors, reads_shapes_types_and_places) {
  static_assert(kGood.size() % 8 == 0);
  const TempFolder folder;
  const auto file = SafetensorsFile::open(folder.write("m.safetensors", file_of(kGood, 32)));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2U);
  const SafetensorsTensor& a = file->tensors()[0];
  const SafetensorsTensor& b = file->tensors()[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.source.dtype, DType::kF32);
  EXPECT_EQ(a.source.rows, 2);
  EXPECT_EQ(a.source.cols, 3);
  EXPECT_EQ(static_cast<int>(a.source.data[1]), 1);
  EXPECT_EQ(b.source.dtype, DType::kBF16);
  EXPECT_EQ(b.source.rows, 1);
  EXPECT_EQ(b.source.cols, 4);
  EXPECT_EQ(static_cast<int>(b.source.data[0]), 24);
}

TEST(Safetensors, refuses_every_known_corruption_by_name) {
  struct Bad {
    std::string header;
    std::size_t data_bytes;
    std::string_view expected;
  };
  const auto one = [](std::string_view body) { return "{\"t\":{" + std::string(body) + "}}"; };
  const Bad bads[] = {
      {"not json", 0, "not valid JSON near byte"},
      {"[1,2]", 0, "not a JSON object"},
      {"{\"t\":1}", 0, "tensor t is described by no JSON object"},
      {"{\"t\":{\"dtype\":\"F32\"", 0, "not valid JSON near byte"},
      {std::string(100000, '['), 0, "nested 100000 deep"},
      {"{\"t\":" + std::string(2000, '[') + std::string(2000, ']') + "}", 0, "nested 2001 deep"},
      {one(R"("shape":[2],"data_offsets":[0,8])"), 8, "tensor t has no dtype"},
      {one(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"), 8, "tensor t has dtype F8_E4M3"},
      {one(R"("dtype":7,"shape":[8],"data_offsets":[0,8])"), 8, "tensor t has no dtype"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), 8, "tensor t has no shape"},
      {one(R"("dtype":"F32","shape":[],"data_offsets":[0,4])"), 4, "tensor t has 0 dimensions"},
      {one(R"("dtype":"F32","shape":[1,1,2],"data_offsets":[0,8])"), 8, "tensor t has 3 dimensions"},
      {one(R"("dtype":"F32","shape":[0],"data_offsets":[0,0])"), 0, "dimension 0 of tensor t"},
      {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, "dimension 0 of tensor t"},
      {one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8, "dimension 0 of tensor t"},
      {one(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"), 8, "does not match"},
      {one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"), 8, "dimension 0 of tensor t"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8, "shape [1, 3] has 8 bytes, which does not match"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7, "tensor t ends at 8 of the data"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8, "data_offsets of tensor t are no ascending pair"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "no pair of data_offsets"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), 8, "no ascending pair"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12, "leave a hole"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9, "the tensors end at 8 of the data, the file at 9"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "overlap"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "one is there twice"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 4, "not aligned"},
  };
  const TempFolder folder;
  for (const Bad& bad : bads) {
    SCOPED_TRACE(bad.header.substr(0, 120));
    const std::string path = folder.write("bad.safetensors", file_of(bad.header, bad.data_bytes));
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file.ok());
    const std::string text(message(file.status()));
    EXPECT_NE(text.find(bad.expected), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with(path)) << text;
  }
}

TEST(Safetensors, refuses_a_header_length_that_cannot_be) {
  const TempFolder folder;
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63, UINT64_MAX, std::uint64_t{10000}}) {
    std::string file = file_of(kGood, 32);
    std::memcpy(file.data(), &length, 8);
    const auto opened = SafetensorsFile::open(folder.write("bad.safetensors", file));
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(message(opened.status()).find("the header claims"), std::string_view::npos) << opened.status();
  }
  const auto pointer =
      SafetensorsFile::open(folder.write("p.safetensors", "version https://git-lfs.example/spec/v1\nsize 9\n"));
  EXPECT_NE(message(pointer.status()).find("git-lfs pointer"), std::string_view::npos) << pointer.status();
}

TEST(Safetensors, refuses_every_truncation_and_survives_random_changes) {
  constexpr unsigned kSeed = 7;
  const MemoryFile memory;
  const std::string good = file_of(kGood, 32);
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(SafetensorsFile::open(memory.write(std::string_view(good).substr(0, size))).ok()) << size;
  }
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    std::string file = good;
    file[random() % (8 + kGood.size())] = static_cast<char>(random());
    const auto opened = SafetensorsFile::open(memory.write(file));
    if (opened.ok()) {
      EXPECT_EQ(opened->tensors().size(), 2U);
    }
  }
}

}  // namespace
}  // namespace tandem
