// The reference executor: runs the programs of all ranks on real bytes, one operation at a time in one thread, and
// compares what callers read with values computed without any program.
//
// Memory starts poisoned and stands between guard bytes. Slow and plain; for tests, small groups and `tide verify`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tide/dtype.h"
#include "tide/script.h"
#include "tide/verify.h"

namespace tide {

// One element that a caller writes.
struct InputElement {
  bool gradient = false;  // else of a shard
  int32_t group = 0;
  int64_t param = 0;
  int32_t rank = 0;     // gradient: who contributes it; shard: who owns it (`index` alone tells which element it is)
  int64_t index = 0;    // in the unsharded tensor
  int32_t version = 0;  // shard: steps before; gradient: backward passes of the group before
  DType dtype = DType::f32;
};

struct Inputs {
  // Writes itemsize(dtype) bytes. Pure: it is called several times for one element.
  std::function<void(const InputElement&, std::byte*)> value;
  float alpha = 1.0F;  // of every reduction
};

struct Execution {
  std::vector<std::string>
      differences;       // at most `limit`: wrong bytes that a caller read, broken guards, changed inputs
  int64_t compared = 0;  // bytes that callers read, all of them compared
  int64_t operations = 0;

  // Everything that callers read, one a rank, in the order of its script: at a use the tensors of the group, whole and
  // one after the other; at a consume the packed output.
  std::vector<std::vector<std::byte>> observed;

  // At the end, [group][rank]: the landing as the rank sees it, and its packed output.
  std::vector<std::vector<std::vector<std::byte>>> landings;
  std::vector<std::vector<std::vector<float>>> outputs;

  bool ok() const { return differences.empty(); }
};

// Without a seed in one fixed order, with one in a random interleaving of all queues and callers.
// Throws Error(check_failed) with the first violation when the programs are malformed (see verify.h: law 1, law 3,
// bounds) or deadlock, Error(invalid_argument) like verify_script().
Execution execute(const Ensemble& ensemble, const Script& script, std::optional<uint64_t> seed, const Inputs& inputs,
                  int32_t limit = 8);

}  // namespace tide
