// Building one rank's programs: 300 tensors, 8 ranks. Physical floor: none, this is pure arithmetic.
#include <benchmark/benchmark.h>

#include "tide/collectives.h"

namespace {

struct Fixture {
  tide::Plan plan;
  std::vector<tide::Layout> layouts;
  tide::Space space;
  Fixture() {
    plan.local = 8;
    tide::Group group{"g", {}};
    for (int64_t p = 0; p < 300; ++p)
      group.tensors.push_back({"t" + std::to_string(p), {129 + p % 121, 256}, tide::DType::bf16});
    layouts.emplace_back(group, tide::LayoutOptions{8, plan.alignment, false, tide::DType::bf16});
    space = make_space(plan, layouts, {false});
  }
};

void AllGather(benchmark::State& state) {
  const Fixture f;
  for (auto _ : state) {
    benchmark::DoNotOptimize(tide::all_gather(f.plan, f.space, f.layouts[0], 0, 3, tide::Pieces::move));
  }
}
BENCHMARK(AllGather)->Unit(benchmark::kMicrosecond);

void ReduceScatter(benchmark::State& state) {
  const Fixture f;
  for (auto _ : state) {
    benchmark::DoNotOptimize(tide::reduce_scatter(f.plan, f.space, f.layouts[0], 3, tide::DType::bf16, {}));
  }
}
BENCHMARK(ReduceScatter)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
