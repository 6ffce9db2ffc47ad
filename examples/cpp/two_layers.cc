// Two layers, sharded over the ranks of one machine: gather each, look at it, reduce its gradients.
//
//   tide launch --ranks 4 -- build/examples/two_layers
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tide/error.h"
#include "tide/session.h"

int main() try {
  const char* rank = std::getenv("TIDE_RANK");
  const char* world = std::getenv("TIDE_WORLD");
  tide::SessionOptions options;
  if (rank != nullptr) options.rank = std::atoi(rank);
  if (world != nullptr) options.world = std::atoi(world);
  if (options.world > 1) options.store = tide::connect_launcher_store();
  tide::Session session(options);
  std::vector<tide::GroupId> layers;
  for (const char* name : {"layer 0", "layer 1"}) {
    layers.push_back(session.register_group({name, {{"weight", {30, 20}}, {"bias", {30}}}}, {}));
  }
  session.commit();

  int64_t wrong = 0;
  for (const tide::GroupId layer : layers) {
    const tide::Layout& layout = session.layout(layer);
    // Element i of a whole tensor is i.
    std::vector<std::vector<float>> shards;
    std::vector<const void*> shard_pointers;
    for (const tide::ParamLayout& p : layout.params()) {
      auto& shard = shards.emplace_back(static_cast<size_t>(p.padded_elements()));
      const int64_t first = p.first_row(options.rank) * p.row_elements;
      for (size_t i = 0; i < shard.size(); ++i) shard[i] = static_cast<float>(first + static_cast<int64_t>(i));
      shard_pointers.push_back(shard.data());
    }

    session.all_gather(layer, shard_pointers);
    std::vector<const void*> gradients;  // as a demonstration: every rank's gradient is the parameter itself
    for (size_t p = 0; p < shards.size(); ++p) {
      const auto* whole = static_cast<const float*>(session.landing(layer, static_cast<int64_t>(p)));
      for (int64_t i = 0; i < layout.params()[p].elements(); ++i) wrong += whole[i] != static_cast<float>(i);
      gradients.push_back(whole);
    }
    std::vector<float> total(static_cast<size_t>(tide::packed_elements(layout, {})));
    session.reduce_scatter(layer, gradients, total.data(), {tide::DType::f32});
    session.release(layer);
    // Equal gradients add up to so many times this rank's shard; the weight stands first in the packed output.
    const auto own = static_cast<size_t>(layout.params()[0].valid_elements(options.rank));
    for (size_t i = 0; i < own; ++i) wrong += total[i] != static_cast<float>(options.world) * shards[0][i];
  }
  session.close();
  std::printf("rank %d of %d: two layers gathered and reduced, %lld wrong elements\n", options.rank, options.world,
              static_cast<long long>(wrong));
  return wrong == 0 ? 0 : 1;
} catch (const tide::Error& error) {
  std::fprintf(stderr, "two_layers: %s\n", error.what());
  return 1;
}
