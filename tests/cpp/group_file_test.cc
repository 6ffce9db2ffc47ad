#include "tide/group_file.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "json_mutations.h"
#include "nlohmann/json.hpp"
#include "tide/error.h"

namespace tide {
namespace {

template <typename Call>
std::string complaint(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "none";
}

std::string complaint_of(const std::string& json) {
  return complaint([&] { parse_groups(json); });
}

// A file of one group whose only tensor has these fields.
std::string with_tensor(const std::string& fields) {
  return R"({"version":1,"groups":[{"name":"g","tensors":[{)" + fields + "}]}]}";
}

bool same(const std::vector<Group>& a, const std::vector<Group>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Group& x, const Group& y) {
    return x.name == y.name && std::equal(x.tensors.begin(), x.tensors.end(), y.tensors.begin(), y.tensors.end(),
                                          [](const TensorSpec& s, const TensorSpec& t) {
                                            return s.name == t.name && s.shape == t.shape && s.dtype == t.dtype &&
                                                   s.trainable == t.trainable;
                                          });
  });
}

std::vector<Group> sample() {
  return {{"first", {{"weight", {4096, 1024}, DType::bf16, true}, {"scale", {}, DType::f32, false}}},
          {"none", {}},
          {"odd \"\\ \xC3\xA9", {{"empty", {0, 7}, DType::f16, true}, {"mask", {3}, DType::boolean, false}}}};
}

TEST(GroupFile, ReadsWhatItWrites) {
  const std::string json = to_json(sample());
  EXPECT_TRUE(same(parse_groups(json), sample())) << json;
  EXPECT_EQ(to_json(parse_groups(json)), json);
  EXPECT_TRUE(parse_groups(to_json(std::vector<Group>{})).empty());
}

TEST(GroupFile, FillsInDefaults) {
  const auto groups = parse_groups(with_tensor(R"("name":"w","shape":[2,3])"));
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].tensors[0].dtype, DType::f32);
  EXPECT_TRUE(groups[0].tensors[0].trainable);
  EXPECT_EQ(parse_groups(with_tensor(R"("name":"w","shape":[],"dtype":"bfloat16")"))[0].tensors[0].dtype, DType::bf16);
}

TEST(GroupFile, RefusesExtentsByPathAndValue) {
  const auto with_extent = [](const std::string& extent) {
    return R"({"version":1,"groups":[{"name":"g","tensors":[{"name":"a","shape":[1]},{"name":"b","shape":[]},)"
           R"({"name":"c","shape":[2,)" +
           extent + "]}]}]}";
  };
  const std::string advice = ": give a whole number from 0 to 2305843009213693952";
  for (const auto& [extent, value] :
       std::vector<std::pair<std::string, std::string>>{{"-3", "-3"},
                                                        {"1.5", "1.5"},
                                                        {"4.0", "4.0"},
                                                        {"9223372036854775807", "9223372036854775807"},
                                                        {"9223372036854775808", "9223372036854775808"},
                                                        {"-9223372036854775809", "-9.223372036854776e+18"},
                                                        {"100000000000000000000", "1e+20"},
                                                        {"null", "null"},
                                                        {"true", "true"},
                                                        {"\"8\"", "\"8\""},
                                                        {"[8]", "an array of 1"},
                                                        {"{}", "an object of 0 fields"}}) {
    EXPECT_EQ(complaint_of(with_extent(extent)), "groups[0].tensors[2].shape[1] is " + value + advice);
  }
}

TEST(GroupFile, RefusesByFieldAndValue) {
  EXPECT_EQ(complaint_of("[]"), "the group file is an array of 0: give an object of version, groups");
  EXPECT_EQ(complaint_of("{}"), "version is missing: add it");
  EXPECT_EQ(complaint_of(R"({"version":2,"groups":[]})"), "version is 2: this build reads version 1");
  EXPECT_EQ(complaint_of(R"({"version":"1","groups":[]})"),
            "version is \"1\": give a whole number from 0 to 2147483647");
  EXPECT_EQ(complaint_of(R"({"version":1})"), "groups is missing: add it");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":{}})"), "groups is an object of 0 fields: give an array");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[],"model":3})"), "model is not a known field: use version, groups");
  EXPECT_EQ(complaint_of(R"({"version":1,"version":1,"groups":[]})"),
            "the group file gives the field \"version\" twice in one object: give it once");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[{"name":"g"}]})"), "groups[0].tensors is missing: add it");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[{"name":"g","tensors":[],"size":1}]})"),
            "groups[0].size is not a known field: use name, tensors");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[{"name":"g","tensors":[]},{"name":"g","tensors":[]}]})"),
            "groups[1].name is \"g\": another group has this name, give each its own");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w")")), "groups[0].tensors[0].shape is missing: add it");
  EXPECT_EQ(complaint_of(with_tensor(R"("shape":[1])")), "groups[0].tensors[0].name is missing: add it");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w","shape":[1],"Dtype":"f32")")),
            "groups[0].tensors[0].Dtype is not a known field: use name, shape, dtype, trainable");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w","shape":[1]},{"name":"w","shape":[2])")),
            "groups[0].tensors[1].name is \"w\": another tensor of the group has this name, give each its own");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"","shape":[1])")), "groups[0].tensors[0].name is \"\": give a name");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"a\nb","shape":[1])")),
            "groups[0].tensors[0].name is \"a\\nb\": give a name without control characters");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":7,"shape":[1])")), "groups[0].tensors[0].name is 7: give a string");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w","shape":[1],"trainable":1)")),
            "groups[0].tensors[0].trainable is 1: give true or false");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w","shape":[1],"dtype":"complex64")")),
            "groups[0].tensors[0].dtype: dtype 'complex64' is unknown: use one of f64, f32, bf16, f16, f8_e4m3, "
            "f8_e5m2, i64, i32, i16, i8, u8, bool");
}

TEST(GroupFile, NamesTheByteWhereTextBreaks) {
  EXPECT_EQ(complaint_of(""), "the group file ends at byte 0 in the middle of its JSON: give the whole text");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[{"na)"),
            "the group file ends at byte 27 in the middle of its JSON: give the whole text");
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[)"),
            "the group file ends at byte 23 in the middle of its JSON: give the whole text");
  EXPECT_EQ(complaint_of(R"({"version":1,;"groups":[]})"),
            "the group file is not JSON at byte 14 of 26: correct it there");
  EXPECT_EQ(complaint_of("{\"version\":1,\"groups\":[]} x"),
            "the group file is not JSON at byte 27 of 27: correct it there");
  EXPECT_NE(complaint_of("{\"\xFF\":1}").find("is not JSON at byte 3 of 7"), std::string::npos);
  EXPECT_EQ(complaint_of(R"({"version":1e999,"groups":[]})"),
            "the group file holds a number that is out of range: give whole numbers below 2^61");
  // Every cut of a good file.
  const std::string json = to_json(sample());
  for (size_t size = 0; size + 1 < json.size(); ++size) {
    EXPECT_NE(complaint_of(json.substr(0, size)).find(fmt::format("ends at byte {}", size)), std::string::npos) << size;
  }
}

TEST(GroupFile, KeepsItsLimits) {
  EXPECT_EQ(complaint_of(std::string(100000, '[')), "the group file is more than 32 levels deep: flatten it");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":")" + std::string(1025, 'n') + R"(","shape":[1])")),
            "groups[0].tensors[0].name is \"" + std::string(64, 'n') + "\"...: give a name of at most 1024 bytes");
  EXPECT_EQ(complaint_of(with_tensor(R"("name":")" + std::string(1024, 'n') + R"(","shape":[1])")), "none");
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_EQ(complaint_of(with_tensor(R"("name":"w","shape":[)" + shape + "]")),
            "groups[0].tensors[0].shape is an array of 65: give at most 64");
  EXPECT_EQ(complaint_of(std::string((64 << 20) + 1, ' ')), "the group file has 67108865 bytes: give at most 67108864");
  std::string many = "1";
  for (int i = 0; i < 1'000'000; ++i) many += ",1";
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[{"name":"g","tensors":[)" + many + "]}]}"),
            "groups[0].tensors is an array of 1000001: give at most 1000000");
  std::string values;
  for (int i = 0; i < (1 << 24); ++i) values += "1,";
  EXPECT_EQ(complaint_of(R"({"version":1,"groups":[)" + values + "1]}"),
            "the group file has more than 16777216 values: split it");
  // A key that nobody knows is shown, but not at any length.
  EXPECT_LT(complaint_of(R"({")" + std::string(100000, 'k') + R"(":1})").size(), 200U);
}

TEST(GroupFile, DamageIsRefusedOrRead) {
  test::survive(to_json(sample()), 6000, [](const std::string& text) { parse_groups(text); });
}

TEST(GroupFile, SchemaKnowsTheSameFields) {
  const auto schema = nlohmann::json::parse(read_file(TIDE_SOURCE_DIR "/docs/schema/group.schema.json"));
  const auto keys = [](const nlohmann::json& object) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    return names;
  };
  const auto written = nlohmann::json::parse(to_json(sample()));
  EXPECT_EQ(keys(schema["properties"]), keys(written));
  EXPECT_EQ(keys(schema["$defs"]["group"]["properties"]), keys(written["groups"][0]));
  EXPECT_EQ(keys(schema["$defs"]["tensor"]["properties"]), keys(written["groups"][0]["tensors"][0]));
  for (const auto& dtype : schema["$defs"]["tensor"]["properties"]["dtype"]["enum"]) {
    EXPECT_NO_THROW(parse_dtype(dtype.get<std::string>()));
  }
}

class ReadFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "group_file_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(ReadFile, WholeTextUpToTheLimit) {
  const std::string path = folder_ / "text";
  std::string text(200'000, 'a');
  text[100'000] = '\0';
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(read_file(path), text);
  EXPECT_EQ(read_file(path, 200'000), text);
  EXPECT_EQ(complaint([&] { read_file(path, 199'999); }),
            "file '" + path + "' has more than 199999 bytes: give a smaller one");
}

TEST_F(ReadFile, NamesThePath) {
  const std::string missing = folder_ / "missing";
  EXPECT_EQ(
      complaint([&] { read_file(missing); }),
      "file '" + missing + "' cannot be read (No such file or directory): give a file that exists and is readable");
  EXPECT_EQ(complaint([&] { read_file(folder_); }),
            "file '" + folder_.string() + "' cannot be read (Is a directory): give a file that exists and is readable");
}

}  // namespace
}  // namespace tide
