// The tide command as its users run it: every command, and bad input that ends in one sentence and status 2.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "json_mutations.h"

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

Result shell(const std::string& command) {
  const auto out = scratch() / "out";
  const auto err = scratch() / "err";
  const int status =
      std::system(("{ " + command + "; } >" + out.string() + " 2>" + err.string() + " </dev/null").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read(out), read(err)};
}

std::string command() {
  const char* other = std::getenv("TIDE_CLI");
  return other == nullptr ? TIDE_COMMAND : other;
}

Result tide(const std::string& arguments) { return shell("exec " + command() + " " + arguments); }

nlohmann::json json_of(const std::string& arguments) {
  const Result result = tide(arguments + " --json");
  EXPECT_EQ(result.status, 0) << arguments << "\n" << result.err;
  return nlohmann::json::parse(result.out);
}

const char* const kGroups = R"({"version": 1, "groups": [
  {"name": "block", "tensors": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [5]}]},
  {"name": "head", "tensors": [{"name": "scale", "shape": []}, {"name": "none", "shape": [0, 4]}]}]})";

std::string groups() { return " --group " + write("groups.json", kGroups); }

// One sentence on stderr, nothing on stdout.
void expect_complaint(const Result& result, int status, const std::string& arguments) {
  EXPECT_EQ(result.status, status) << arguments << "\n" << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
  EXPECT_EQ(result.err.rfind("tide: ", 0), 0U) << arguments << "\n" << result.err;
  EXPECT_EQ(result.out, "") << arguments;
}

void expect_refused(const std::string& arguments, const std::string& field, const std::string& value) {
  const Result result = tide(arguments);
  expect_complaint(result, 2, arguments);
  EXPECT_NE(result.err.find(field), std::string::npos) << arguments << "\n" << result.err;
  EXPECT_NE(result.err.find(value), std::string::npos) << arguments << "\n" << result.err;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in\n" << text;
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(command())) GTEST_SKIP() << "the tide command is not built: " << command();
  }
};

TEST_F(Cli, HelpAndVersion) {
  for (const char* arguments : {"--help", "plan --help", "explain --help", "verify --help", "doctor --help",
                                "launch --help", "models --help", "--version"}) {
    const Result result = tide(arguments);
    EXPECT_EQ(result.status, 0) << arguments;
    EXPECT_NE(result.out, "") << arguments;
    EXPECT_EQ(result.err, "") << arguments;
  }
  EXPECT_EQ(tide("--version").out.rfind("tide ", 0), 0U);
}

TEST_F(Cli, ModelsHavePublishedTotals) {
  const auto models = json_of("models").at("models");
  const std::string table = tide("models").out;
  const auto total = [&](const std::string& name) -> int64_t {
    for (const auto& model : models) {
      if (model.at("name") == name) return model.at("parameters");
    }
    return -1;
  };
  EXPECT_EQ(total("llama-3.1-8b"), 8030261248);
  EXPECT_EQ(total("gpt2-small"), 124439808);
  expect_contains(table, "8,030,261,248");
  for (const auto& model : models) {
    EXPECT_LE(model.at("largest_group"), model.at("parameters"));
    expect_contains(table, model.at("name"));
  }
}

TEST_F(Cli, PlanPrintsAnAccount) {
  const Result text = tide("plan --local 3 --landing ring --ring-depth 1 --chunk-bytes 1KiB" + groups());
  ASSERT_EQ(text.status, 0) << text.err;
  expect_contains(text.out, "3 ranks on one node, landing ring");
  expect_contains(text.out, "block");
  expect_contains(text.out, "1 slot, shared by the ranks, taken in turn by 2 groups");
  expect_contains(text.out, "3 ranks x 2 slots x 2 peers x 1.00 KiB");
  // 512 B of landing for 'block' ('w' at 0, 'b' at 256 takes 24 B more), 3 x 2 x 2 KiB of staging.
  expect_contains(text.out, "280 B");
  expect_contains(text.out, "12.00 KiB");
  expect_contains(text.out, "12,568 B");
  // fp32 gradients halve the elements of a chunk, so more pushes.
  const auto row = [&](const std::string& options) {
    const std::string out = tide("plan --model gpt2-small --local 2" + options).out;
    const size_t total = out.find("\ntotal");
    return out.substr(total + 1, out.find('\n', total + 1) - total - 1);
  };
  EXPECT_NE(row(""), row(" --grad-dtype f32"));
  EXPECT_EQ(row(""), row(" --grad-dtype bf16"));
}

TEST_F(Cli, PlansRoundTrip) {
  const std::string plan = (scratch() / "plan.json").string();
  const std::string choices =
      " --local 3 --landing ring --alignment 64 --chunk-bytes 0.5KiB --staging-slots 3 --passes 2";
  const Result json = tide("plan --json --output " + plan + choices + groups());
  ASSERT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(json.out, read(plan));
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed.at("chunk_bytes"), 512);
  EXPECT_EQ(parsed.at("landing"), "ring");
  // A plan says it all; what is said again must be the same.
  EXPECT_EQ(tide("plan --json --plan " + plan + groups()).out, json.out);
  EXPECT_EQ(tide("plan --json --plan " + plan + choices + groups()).out, json.out);
  EXPECT_EQ(tide("explain --plan " + plan + groups()).out, tide("explain" + choices + groups()).out);
  const auto report = json_of("verify --plan " + plan + groups());
  ASSERT_EQ(report.at("results").size(), 1U);
  EXPECT_EQ(report.at("results")[0].at("local"), 3);
  EXPECT_EQ(report.at("results")[0].at("landing"), "ring");
  expect_refused("verify --landing home --plan " + plan + groups(), "--landing is home", "ring");
  expect_refused("verify --landing all --plan " + plan + groups(), "--landing is all", "ring");
  expect_refused("verify --local 2 3 --plan " + plan + groups(), "--local is 2", "3");
  expect_refused("explain --passes 1 --plan " + plan + groups(), "--passes is 1", "2");
}

TEST_F(Cli, APlanForOtherGroups) {
  const std::string plan = (scratch() / "other.json").string();
  ASSERT_EQ(tide("plan --model gpt2-small --local 2 --output " + plan).status, 0);
  for (const char* verb : {"plan", "explain", "verify"}) {
    expect_refused(std::string(verb) + " --plan " + plan + groups(), "groups", "tide plan");
    expect_refused(std::string(verb) + " --plan " + plan + " --model gpt2-small --cast f32", "groups", "tide plan");
  }
  const std::string text = read(plan);
  expect_refused("verify --model gpt2-small --plan " + write("broken.json", text.substr(0, text.size() / 2)), "plan",
                 "byte");
  expect_refused("verify --model gpt2-small --plan " + write("list.json", "[]"), "plan", "array");
  expect_refused("verify --plan " + write("groups.json", kGroups) + groups(), "kind", "missing");
  expect_refused("verify --model gpt2-small --plan " + scratch().string(), scratch().string(), "");
  // Any damage is refused or harmless.
  std::mt19937_64 random(7);
  for (int i = 0; i < 25; ++i) {
    const std::string damaged = tide::test::damaged(text, random);
    const Result result = tide("plan --model gpt2-small --plan " + write("damaged.json", damaged));
    if (result.status != 0) expect_complaint(result, 2, damaged);
  }
}

TEST_F(Cli, ExplainNamesWhatMoves) {
  const Result gather = tide("explain --local 3 --rank 1" + groups());
  ASSERT_EQ(gather.status, 0) << gather.err;
  expect_contains(gather.out, "all-gather of group 'block', rank 1 of 3");
  expect_contains(gather.out, "7 operations: 2 copy, 1 signal, 4 wait");
  expect_contains(gather.out, "gather  copy   18 B  shard 'w' rows 3 to 5 -> shared landing 'w' rows 3 to 5");
  expect_contains(gather.out, "gather  wait   arrived from local 2");
  expect_contains(gather.out, "gather  signal arrived to every peer");
  const Result cast = tide("explain --local 3 --rank 1 --cast f16 --landing private" + groups());
  expect_contains(cast.out,
                  "cast   18 B  bf16 to f16  shard 'w' rows 3 to 5 -> landing of every local rank 'w' rows 3 to 5");
  const Result keep = tide("explain --local 3 --keep" + groups());
  EXPECT_EQ(keep.out.find("copy"), std::string::npos) << keep.out;
  const Result resident = tide("explain --local 3 --rank 1 --resident-shards" + groups());
  expect_contains(resident.out, "resident shard 'w' rows 3 to 5 ->");
  const Result release = tide("explain --local 3 --collective release --group-name head" + groups());
  expect_contains(release.out, "signal released group 1 to every peer");
}

TEST_F(Cli, ExplainFollowsChunks) {
  const std::string many = write("many.json", R"({"version": 1, "groups": [
    {"name": "g", "tensors": [{"name": "a\"\\b", "shape": [64, 5]}, {"name": "c", "shape": [31]}]}]})");
  const std::string any_rank = "explain --collective reduce-scatter --chunk-bytes 128 --local 3 --group " + many;
  const std::string arguments = any_rank + " --rank 1";
  const Result text = tide(arguments);
  ASSERT_EQ(text.status, 0) << text.err;
  expect_contains(text.out, "chunk 0: push to its owners");
  expect_contains(text.out, "chunk 3: fold of this rank's part");
  expect_contains(text.out, "staging of local 2, slot 0");
  expect_contains(text.out,
                  "local 0's in slot 0 + grad 'a\"\\b' row 22 element 0 to row 28 element 1 + local 2's in slot 0");
  // Rank 2 has 20 of 22 rows and 9 of 11 elements.
  const Result last = tide(any_rank + " --rank 2");
  expect_contains(last.out, "zero   40 B  output elements 100 to 109");
  expect_contains(text.out, "signal staged to local 2");
  const auto json = json_of(arguments);
  std::set<int64_t> pushed;
  std::set<int64_t> folded;
  int64_t signals = 0;
  int64_t summed = 0;
  for (const auto& op : json.at("operations")) {
    if (op.at("kind") == "copy") pushed.insert(op.at("chunk").get<int64_t>());
    if (op.at("kind") == "sum") {
      folded.insert(op.at("chunk").get<int64_t>());
      summed += op.at("bytes").get<int64_t>();
      EXPECT_EQ(op.at("sources").size(), 3U);
      EXPECT_EQ(op.at("destination").at("name"), "output");
    }
    signals += op.at("kind") == "signal" && op.at("counter") == "staged" ? 1 : 0;
  }
  // 121 packed elements a rank: 22 rows of 5, and 11 of 'c'.
  EXPECT_EQ(pushed, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(folded, pushed);
  EXPECT_EQ(signals, 8);
  EXPECT_EQ(summed, 121 * 4);
  const auto whole = std::count(text.out.begin(), text.out.end(), '\n');
  const std::string some = tide(arguments + " --limit 3").out;
  EXPECT_LT(std::count(some.begin(), some.end(), '\n'), whole);
  expect_contains(some, "more operations: see --limit");
  EXPECT_EQ(tide(arguments + " --limit 0").out, text.out);
}

TEST_F(Cli, ExplainDrawsAGraph) {
  const Result dot = tide("explain --local 3 --dot --collective reduce-scatter" + groups());
  ASSERT_EQ(dot.status, 0) << dot.err;
  EXPECT_EQ(dot.out.rfind("digraph", 0), 0U);
  expect_contains(dot.out, "label=\"queue push\"");
  expect_contains(dot.out, "label=\"queue sum\"");
  expect_contains(dot.out, "\"staged from local 2\" -> op");
  expect_contains(dot.out, "-> \"staged at local 1\"");
  EXPECT_EQ(std::count(dot.out.begin(), dot.out.end(), '{'), std::count(dot.out.begin(), dot.out.end(), '}'));
}

TEST_F(Cli, VerifyEveryLandingAndFault) {
  const auto report = json_of("verify --local 1 2 3 --landing all --faults --micro-batches 2" + groups());
  EXPECT_TRUE(report.at("ok"));
  // home too, since nothing is cast
  EXPECT_EQ(report.at("results").size(), 12U);
  int64_t caught = 0;
  for (const auto& one : report.at("results")) {
    EXPECT_TRUE(one.at("ok")) << one;
    EXPECT_GT(one.at("operations"), 0) << one;
    for (const auto& fault : one.at("faults")) caught += fault.at("caught").get<int64_t>();
  }
  EXPECT_GT(caught, 100);
  const Result text = tide("verify --local 2 --landing all --cast f16" + groups());
  EXPECT_EQ(text.status, 0) << text.out;
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 3) << text.out;
  EXPECT_EQ(text.err, "");
}

TEST_F(Cli, ASampleMeetsASlotAgain) {
  std::string text = R"({"version": 1, "groups": [)";
  for (int g = 0; g < 7; ++g) {
    text += std::string(g == 0 ? "" : ",") + R"({"name": "g)" + std::to_string(g) +
            R"(", "tensors": [{"name": "w", "shape": [3]}]})";
  }
  const std::string seven = " --group " + write("seven.json", text + "]}");
  const auto groups_in = [&](const std::string& options) {
    return json_of("verify --local 2 " + options + seven).at("results")[0].at("groups").size();
  };
  EXPECT_EQ(groups_in("--landing ring --ring-depth 2"), 3U);
  EXPECT_EQ(groups_in("--landing resident"), 2U);
  EXPECT_EQ(groups_in("--landing resident --groups all"), 7U);
  EXPECT_EQ(groups_in("--landing ring --ring-depth 9"), 7U);
}

TEST_F(Cli, VerifyNamesWhatBreaks) {
  // Two gathers ahead of the group in use do not fit into two slots.
  std::string text = R"({"version": 1, "groups": [)";
  for (const char* name : {"a", "b", "c"}) {
    text += std::string(*name == 'a' ? "" : ",") + R"({"name": ")" + name +
            R"(", "tensors": [{"name": "w", "shape": [3]}]})";
  }
  const std::string arguments =
      "verify --local 2 --landing ring --ring-depth 2 --prefetch 2 --group " + write("three.json", text + "]}");
  const Result result = tide(arguments);
  EXPECT_EQ(result.status, 1) << result.out;
  expect_contains(result.out, "violation");
  const Result json = tide(arguments + " --json");
  EXPECT_EQ(json.status, 1);
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_FALSE(report.at("ok"));
  const auto violations = report.at("results")[0].at("violations");
  ASSERT_FALSE(violations.empty());
  for (const auto& violation : violations) {
    EXPECT_NE(violation.at("law"), "");
    EXPECT_NE(violation.at("queue"), "");
    EXPECT_NE(violation.at("sentence"), "");
    EXPECT_GE(violation.at("rank"), 0);
    EXPECT_GE(violation.at("operation"), 0);
    expect_contains(result.out, violation.at("sentence"));
  }
  // What is not asked for is what the ring can take.
  EXPECT_EQ(tide("verify --local 2 --landing ring --ring-depth 1" + groups()).status, 0);
}

TEST_F(Cli, DoctorKnowsTheMachine) {
  // Without a PyTorch to import, which takes long.
  const Result result = shell("PATH=/nowhere VIRTUAL_ENV= exec " + command() + " doctor --json");
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_TRUE(report.at("ok"));
  std::set<std::string> seen;
  for (const auto& finding : report.at("findings")) {
    seen.insert(finding.at("what"));
    EXPECT_EQ(finding.at("standing") == "missing", !finding.at("advice").get<std::string>().empty()) << finding;
    EXPECT_EQ(finding.at("standing") == "missing", !finding.at("lost").get<std::string>().empty()) << finding;
    if (finding.at("what") == "PyTorch") {
      EXPECT_EQ(finding.at("standing"), "missing");
    }
  }
  for (const char* what :
       {"sealed shared memory", "death of a peer (pidfd)", "sleeping on memory (futex)", "open files", "locked memory",
        "memory available", "processors", "vector instructions", "NUMA nodes", "PyTorch", "UCX", "NCCL", "nvcc"}) {
    EXPECT_EQ(seen.count(what), 1U) << what;
  }
  const Result text = shell("PATH=/nowhere VIRTUAL_ENV= exec " + command() + " doctor");
  EXPECT_EQ(text.status, 0);
  expect_contains(text.out, "lost: tide.fsdp");
}

TEST_F(Cli, DoctorWithoutAFolderForSockets) {
  const Result result = shell("PATH=/nowhere TIDE_RUNTIME_DIR=/nowhere exec " + command() + " doctor");
  EXPECT_EQ(result.status, 1);
  expect_contains(result.out, "broken");
  expect_contains(result.out, "TIDE_RUNTIME_DIR");
}

TEST_F(Cli, LaunchReturnsTheFirstFailure) {
  EXPECT_EQ(tide("launch --ranks 3 -- true").status, 0);
  EXPECT_EQ(tide("launch --ranks 2 --grace 1 -- sh -c 'exit 7'").status, 7);
  const Result ranks = tide("launch --ranks 2 -- sh -c 'echo $TIDE_WORLD'");
  EXPECT_EQ(ranks.out, "2\n2\n");
  EXPECT_EQ(tide("launch --ranks 1 -- sh -c 'echo \"$@\"' sh --ranks 5").out, "--ranks 5\n");
}

TEST_F(Cli, LaunchEndsAtItsDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const Result late = tide("launch --ranks 2 --deadline 0.5 -- sleep 60");
  expect_complaint(late, 1, "launch --deadline");
  expect_contains(late.err, "--deadline 0.5 s");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(tide("launch --ranks 1 --deadline 60 -- sh -c 'exit 3'").status, 3);
}

TEST_F(Cli, BadGroupFiles) {
  const auto refused = [](const std::string& text, const std::string& field, const std::string& value) {
    expect_refused("plan --local 2 --group " + write("bad.json", text), field, value);
  };
  refused(R"({"version": 1, "groups": [], "extra": 3})", "extra", "extra");
  refused(R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [4, -3]}]}]})",
          "groups[0].tensors[0].shape[1]", "-3");
  refused(
      R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [1]}, {"name": "w", "shape": [1]}]}]})",
      "name", "w");
  refused(R"({"version": 1, "groups": [{"name": "g", "tensors": []}, {"name": "g", "tensors": []}]})", "groups[1].name",
          "\"g\"");
  refused(R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": [1], "dtype": "f12"}]}]})",
          "dtype", "f12");
  refused(std::string(kGroups).substr(0, 90), "byte", "90");
  refused(R"({"version": 9, "groups": []})", "version", "9");
  refused(R"({"version": 1, "groups": []})", "--group", "bad.json");
  refused("", "byte 0", "");
  refused("[1, 2", "byte 5", "");
  refused(std::string(100000, '['), "levels", "32");
  refused(R"({"version": 1, "groups": [{"name": ")" + std::string(70 << 20, 'x') + R"(", "tensors": []}]})", "bad.json",
          "67108864");
  expect_refused("plan --local 2 --group " + (scratch() / "absent.json").string(), "absent.json", "cannot be read");
  expect_refused("plan --local 2 --group " + scratch().string(), scratch().string(), "cannot be read");
  std::mt19937_64 random(11);
  for (int i = 0; i < 25; ++i) {
    const std::string damaged = tide::test::damaged(kGroups, random);
    const Result result = tide("verify --local 2 --group " + write("damaged.json", damaged));
    if (result.status != 0) expect_complaint(result, 2, damaged);
  }
}

TEST_F(Cli, SizesBeyondAnyMachine) {
  const auto one = [](const std::string& shape) {
    return " --group " +
           write("large.json",
                 R"({"version": 1, "groups": [{"name": "g", "tensors": [{"name": "w", "shape": )" + shape + "}]}]}");
  };
  // A plan is arithmetic; programs of as many chunks are not built.
  EXPECT_EQ(tide("plan --local 2" + one("[1099511627776]")).status, 0);
  expect_refused("explain --local 2 --collective reduce-scatter" + one("[1099511627776]"), "'g'", "--chunk-bytes");
  expect_refused("verify --local 2" + one("[1099511627776]"), "'g'", "--chunk-bytes");
  expect_refused("plan --local 2" + one("[2305843009213693952]"), "'w'", "2305843009213693952");
  expect_refused("plan --local 1024 --landing private" + one("[72057594037927936]"), "1,024 ranks", "private");
}

TEST_F(Cli, BadOptions) {
  expect_refused("plan --local 2", "--group", "--model");
  expect_refused("plan --local 2 --model gpt2-small" + groups(), "--group", "--model");
  expect_refused("plan --model gpt2-small", "--local", "missing");
  expect_refused("plan --local 2 --model gpt9", "gpt9", "gpt2-small");
  expect_refused("plan --local 2 --model gpt2-small --dtype f12", "f12", "bf16");
  expect_refused("plan --local 2 --dtype bf16" + groups(), "--dtype", "bf16");
  for (const char* verb : {"plan", "explain", "verify"}) {
    expect_refused(std::string(verb) + " --local 2 --nodes 2" + groups(), "--nodes is 2", "one node");
  }
  expect_refused("plan --local 2 --nodes 0" + groups(), "--nodes", "0");
  expect_refused("plan --local 0" + groups(), "--local", "0");
  expect_refused("plan --local -1" + groups(), "--local", "-1");
  expect_refused("plan --local 99999999999999999999" + groups(), "--local", "99999999999999999999");
  expect_refused("plan --local two" + groups(), "--local", "two");
  expect_refused("plan --local 2x" + groups(), "--local", "2x");
  expect_refused("plan --local" + groups(), "--local", "plan --help");
  expect_refused("plan --local 2 --chunk-bytes 1.3B" + groups(), "--chunk-bytes", "1.3B");
  expect_refused("plan --local 2 --chunk-bytes 100" + groups(), "chunk_bytes", "100");
  expect_refused("plan --local 2 --chunk-bytes -64" + groups(), "--chunk-bytes", "-64");
  expect_refused("plan --local 2 --chunk-bytes nan" + groups(), "--chunk-bytes", "nan");
  expect_refused("plan --local 2 --alignment 3" + groups(), "alignment", "3");
  expect_refused("plan --local 2 --ring-depth 0" + groups(), "--ring-depth", "0");
  expect_refused("plan --local 2 --staging-slots 5000" + groups(), "staging_slots", "5000");
  expect_refused("plan --local 2 --passes none" + groups(), "--passes", "none");
  expect_refused("plan --local 2 --landing sky" + groups(), "landing", "sky");
  expect_refused("plan --local 2 --landing all" + groups(), "landing", "all");
  expect_refused("plan --local 2 --landing home --cast f16" + groups(), "home", "'w'");
  expect_refused("plan --local 2 --cast i32" + groups(), "i32", "f32");
  expect_refused("plan --local 2 --grad-dtype i64" + groups(), "--grad-dtype", "i64");
  expect_refused("plan --local 2 --colour red" + groups(), "--colour", "plan --help");
  expect_refused("plan --local 2 --output /nowhere/at/all" + groups(), "--output", "/nowhere/at/all");
  expect_refused("explain --local 2 --rank 2" + groups(), "--rank", "2");
  expect_refused("explain --local 2 --group-index 2" + groups(), "--group-index", "2");
  expect_refused("explain --local 2 --collective broadcast" + groups(), "--collective", "broadcast");
  expect_refused("explain --local 2 --group-name nose" + groups(), "--group-name", "nose");
  expect_refused("explain --local 2 --keep --landing ring" + groups(), "'block'", "ring");
  expect_refused("explain --local 2 --keep --collective release" + groups(), "--keep", "release");
  expect_refused("explain --local 2 --json --dot" + groups(), "--json", "--dot");
  expect_refused("verify --local 2 --steps 0" + groups(), "--steps", "0");
  expect_refused("verify --local 2 --steps -1" + groups(), "--steps", "-1");
  expect_refused("verify --local 2 --prefetch -1" + groups(), "--prefetch", "-1");
  expect_refused("verify --local 2 --steps 999 --micro-batches 9" + groups(), "--micro-batches", "9");
  expect_refused("verify --local 2 --groups some" + groups(), "--groups", "some");
  expect_refused("launch --ranks 0 -- true", "--ranks", "0");
  expect_refused("launch --ranks many -- true", "--ranks", "many");
  expect_refused("launch --ranks 1 --grace -3 -- true", "--grace", "-3");
  expect_refused("launch --ranks 1 --deadline soon -- true", "--deadline", "soon");
  expect_refused("launch --ranks 1", "command", "launch --help");
  expect_refused("launch --ranks 1 true --loud", "--loud", "--");
  expect_refused("launch --ranks 1 -- /no/such/program", "/no/such/program", "");
}

TEST_F(Cli, UnknownCommands) {
  for (const char* command : {"bench", "calibrate", "sim", "advise", "model", "Plan"}) {
    expect_refused(std::string(command) + " all-gather", std::string("'") + command + "'", "plan, explain, verify");
  }
  expect_refused("", "command", "plan, explain, verify");
  expect_refused("--frobnicate", "--frobnicate", "plan, explain, verify");
  expect_refused("'a\nb\033[31m'", "a?b?[31m", "");
}

TEST_F(Cli, OutputThatCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  const Result result = shell("exec " + command() + " models >/dev/full");
  expect_complaint(result, 1, "models >/dev/full");
  expect_contains(result.err, "standard output");
}

class RemoveScratch final : public testing::Environment {
  void TearDown() override { std::filesystem::remove_all(scratch()); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new RemoveScratch);

}  // namespace
