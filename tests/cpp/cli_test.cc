// The tide command as its users run it: every command, and bad input that ends in one sentence and status 2.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

struct Result {
  int status = -1;
  std::string out, err;
};

std::filesystem::path scratch() {
  static const std::filesystem::path folder = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "tide-cli-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    return std::filesystem::path(pattern);
  }();
  return folder;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string write(const std::string& name, const std::string& text) {
  const auto path = scratch() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

Result tide(const std::string& arguments) {
  const auto out = scratch() / "out";
  const auto err = scratch() / "err";
  const std::string command =
      std::string(TIDE_COMMAND) + " " + arguments + " >" + out.string() + " 2>" + err.string() + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read(out), read(err)};
}

const char* const kGroups = R"({"version": 1, "groups": [
  {"name": "block", "tensors": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [5]}]},
  {"name": "head", "tensors": [{"name": "scale", "shape": []}, {"name": "none", "shape": [0, 4]}]}]})";

void expect_refused(const std::string& arguments, const std::string& field, const std::string& value) {
  const Result result = tide(arguments);
  EXPECT_EQ(result.status, 2) << arguments << "\n" << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
  EXPECT_EQ(result.err.rfind("tide: ", 0), 0U) << result.err;
  EXPECT_NE(result.err.find(field), std::string::npos) << arguments << "\n" << result.err;
  EXPECT_NE(result.err.find(value), std::string::npos) << arguments << "\n" << result.err;
  EXPECT_EQ(result.out, "") << arguments;
}

TEST(Cli, HelpAndVersion) {
  for (const char* arguments : {"--help", "plan --help", "explain --help", "verify --help", "doctor --help",
                                "launch --help", "models --help", "--version"}) {
    const Result result = tide(arguments);
    EXPECT_EQ(result.status, 0) << arguments;
    EXPECT_NE(result.out, "") << arguments;
    EXPECT_EQ(result.err, "") << arguments;
  }
}

TEST(Cli, ModelsHavePublishedTotals) {
  const Result result = tide("models --json");
  ASSERT_EQ(result.status, 0) << result.err;
  const auto models = nlohmann::json::parse(result.out).at("models");
  const auto total = [&](const std::string& name) -> int64_t {
    for (const auto& model : models) {
      if (model.at("name") == name) return model.at("parameters");
    }
    return -1;
  };
  EXPECT_EQ(total("llama-3.1-8b"), 8030261248);
  EXPECT_EQ(total("gpt2-small"), 124439808);
}

TEST(Cli, PlanPrintsAndRoundTrips) {
  const std::string groups = write("groups.json", kGroups);
  const Result text = tide("plan --group " + groups + " --local 3");
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("block"), std::string::npos);
  const std::string plan = (scratch() / "plan.json").string();
  const Result json = tide("plan --group " + groups + " --local 3 --landing ring --json --output " + plan);
  ASSERT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out), nlohmann::json::parse(read(plan)));
  EXPECT_EQ(tide("verify --group " + groups + " --local 3 --plan " + plan).status, 0);
}

TEST(Cli, ExplainNamesWhatMoves) {
  const std::string groups = write("groups.json", kGroups);
  const Result gather = tide("explain --group " + groups + " --local 3 --rank 1");
  ASSERT_EQ(gather.status, 0) << gather.err;
  EXPECT_NE(gather.out.find("copy 18 B of shard 'w' row 0 -> shared landing 'w' row 3"), std::string::npos)
      << gather.out;
  const Result reduce = tide("explain --group " + groups + " --local 3 --rank 1 --collective reduce-scatter");
  ASSERT_EQ(reduce.status, 0) << reduce.err;
  EXPECT_NE(reduce.out.find("staging of local 2, slot 0, block of local 1"), std::string::npos) << reduce.out;
  EXPECT_NE(reduce.out.find("sum"), std::string::npos);
  const Result dot = tide("explain --group " + groups + " --local 3 --dot");
  EXPECT_EQ(dot.out.rfind("digraph", 0), 0U);
  const Result json = tide("explain --group " + groups + " --local 3 --json");
  EXPECT_FALSE(nlohmann::json::parse(json.out).at("operations").empty());
}

TEST(Cli, VerifyEveryLandingAndFault) {
  const std::string groups = write("groups.json", kGroups);
  const Result result = tide("verify --group " + groups + " --local 1 2 3 --landing all --faults --json");
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_TRUE(report.at("ok"));
  EXPECT_EQ(report.at("results").size(), 9U);
  int64_t caught = 0;
  for (const auto& one : report.at("results")) {
    for (const auto& fault : one.at("faults")) caught += fault.at("caught").get<int64_t>();
  }
  EXPECT_GT(caught, 100);
}

TEST(Cli, DoctorKnowsTheMachine) {
  const Result result = tide("doctor --json");
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  EXPECT_TRUE(nlohmann::json::parse(result.out).at("ok"));
}

TEST(Cli, LaunchReturnsTheFirstFailure) {
  EXPECT_EQ(tide("launch --ranks 3 -- true").status, 0);
  EXPECT_EQ(tide("launch --ranks 2 --grace 1 -- sh -c 'exit 7'").status, 7);
}

TEST(Cli, BadGroupFiles) {
  const auto refused = [](const std::string& text, const std::string& field, const std::string& value) {
    expect_refused("plan --local 2 --group " + write("bad.json", text), field, value);
  };
  refused(R"({"version": 1, "groups": [], "extra": 3})", "extra", "extra");
  refused(R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [4, -3]}]}]})",
          "groups[0].tensors[0].shape[1]", "-3");
  refused(
      R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [1]}, {"name": "w", "shape": [1]}]}]})",
      "name", "w");
  refused(R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [1], "dtype": "f12"}]}]})",
          "dtype", "f12");
  refused(std::string(kGroups).substr(0, 90), "byte", "");
  refused(std::string(100000, '['), "", "");
  refused(R"({"version": 9, "groups": []})", "version", "9");
  refused("", "", "");
  std::string huge = R"({"version": 1, "groups": [{"name": ")";
  huge += std::string(70 << 20, 'x') + R"(", "tensors": []}]})";
  refused(huge, "64", "");
  expect_refused("plan --local 2 --group " + (scratch() / "absent.json").string(), "absent.json", "");
  expect_refused("plan --local 2 --group " + scratch().string(), scratch().string(), "");
}

TEST(Cli, BadOptions) {
  const std::string groups = write("groups.json", kGroups);
  expect_refused("plan --local 2", "--group", "--model");
  expect_refused("plan --local 2 --model gpt9", "gpt9", "gpt2-small");
  expect_refused("plan --local 2 --nodes 2 --group " + groups, "--nodes", "2");
  expect_refused("plan --local 0 --group " + groups, "--local", "0");
  expect_refused("plan --local two --group " + groups, "--local", "two");
  expect_refused("plan --local 2 --chunk-bytes 1.3B --group " + groups, "--chunk-bytes", "1.3B");
  expect_refused("plan --local 2 --landing sky --group " + groups, "landing", "sky");
  expect_refused("plan --local 2 --landing home --cast f16 --group " + groups, "home", "'w'");
  expect_refused("plan --local 2 --colour red --group " + groups, "--colour", "");
  expect_refused("plan --local 2 --output /nowhere/at/all --group " + groups, "--output", "/nowhere/at/all");
  expect_refused("explain --local 2 --rank 2 --group " + groups, "rank", "2");
  expect_refused("explain --local 2 --collective broadcast --group " + groups, "--collective", "broadcast");
  expect_refused("explain --local 2 --group-name nose --group " + groups, "--group-name", "nose");
  expect_refused("verify --local 2 --steps -1 --group " + groups, "steps", "-1");
  expect_refused("launch --ranks 0 -- true", "--ranks", "0");
  expect_refused("launch --ranks 1 -- /no/such/program", "/no/such/program", "");
  expect_refused("bench all-gather", "bench", "");
  expect_refused("", "", "");
}

TEST(Cli, APlanForOtherGroups) {
  const std::string groups = write("groups.json", kGroups);
  const std::string plan = (scratch() / "other.json").string();
  ASSERT_EQ(tide("plan --model gpt2-small --local 2 --output " + plan).status, 0);
  expect_refused("verify --local 2 --group " + groups + " --plan " + plan, "groups", "tide plan");
  std::string text = read(plan);
  write("broken.json", text.substr(0, text.size() / 2));
  expect_refused("verify --local 2 --model gpt2-small --plan " + (scratch() / "broken.json").string(), "", "");
}

class RemoveScratch final : public testing::Environment {
  void TearDown() override { std::filesystem::remove_all(scratch()); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new RemoveScratch);

}  // namespace
