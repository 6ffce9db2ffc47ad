// The kernels beside the memcpy of the same machine, which is the floor of anything that moves bytes once.
#include "runtime/host/kernels.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

namespace tide {
namespace {

constexpr int64_t kInCache = 64 << 10;
constexpr int64_t kInMemory = 64 << 20;

std::vector<std::byte> filled(int64_t bytes) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  // Small normal numbers in every dtype.
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte{i % 2 == 0 ? uint8_t{0x11} : uint8_t{0x3C}};
  return data;
}

// Bytes read and written, for every benchmark alike.
void report(benchmark::State& state, int64_t bytes) { state.SetBytesProcessed(state.iterations() * bytes); }

void memcpy_floor(benchmark::State& state) {
  const std::vector<std::byte> src = filled(state.range(0));
  std::vector<std::byte> dst(src.size());
  for (auto _ : state) {
    std::memcpy(dst.data(), src.data(), src.size());
    benchmark::ClobberMemory();
  }
  report(state, 2 * state.range(0));
}

void copy(benchmark::State& state) {
  const std::vector<std::byte> src = filled(state.range(0));
  std::vector<std::byte> dst(src.size());
  for (auto _ : state) {
    host::copy(dst.data(), src.data(), state.range(0));
    benchmark::ClobberMemory();
  }
  report(state, 2 * state.range(0));
}

void cast(benchmark::State& state, DType from, DType to) {
  const int64_t elements = state.range(0) / itemsize(from);
  const std::vector<std::byte> src = filled(state.range(0));
  std::vector<std::byte> dst(static_cast<size_t>(elements * itemsize(to)));
  const host::FloatEnvironment environment;
  for (auto _ : state) {
    host::cast(dst.data(), to, src.data(), from, elements);
    benchmark::ClobberMemory();
  }
  report(state, elements * (itemsize(from) + itemsize(to)));
}

// `range(0)` bytes of each source, `range(1)` sources.
void sum(benchmark::State& state, DType dtype) {
  const int64_t elements = state.range(0) / itemsize(dtype);
  std::vector<std::vector<std::byte>> buffers;
  std::vector<const std::byte*> sources;
  for (int64_t s = 0; s < state.range(1); ++s) buffers.push_back(filled(state.range(0)));
  for (const auto& buffer : buffers) sources.push_back(buffer.data());
  std::vector<float> out(static_cast<size_t>(elements));
  const host::FloatEnvironment environment;
  for (auto _ : state) {
    host::sum(out.data(), sources, dtype, elements, 0.125F, false);
    benchmark::ClobberMemory();
  }
  report(state, state.range(0) * state.range(1) + elements * 4);
}

BENCHMARK(memcpy_floor)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK(copy)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(cast, f32_to_bf16, DType::f32, DType::bf16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(cast, f32_to_f16, DType::f32, DType::f16)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(cast, bf16_to_f32, DType::bf16, DType::f32)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(cast, f16_to_f32, DType::f16, DType::f32)->Arg(kInCache)->Arg(kInMemory);
BENCHMARK_CAPTURE(sum, f32, DType::f32)->ArgsProduct({{kInCache, 16 << 20}, {2, 8}});
BENCHMARK_CAPTURE(sum, bf16, DType::bf16)->ArgsProduct({{kInCache, 16 << 20}, {2, 8}});
BENCHMARK_CAPTURE(sum, f16, DType::f16)->ArgsProduct({{kInCache, 16 << 20}, {2, 8}});

}  // namespace
}  // namespace tide

BENCHMARK_MAIN();
