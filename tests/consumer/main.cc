#include <tide/layout.h>
#include <tide/version.h>

#include <cstdio>

int main() {
  const tide::Layout layout({"layer", {{"weight", {7, 3}, tide::DType::f32, true}}}, {.world = 2});
  std::printf("tide %s: %lld landing bytes\n", TIDE_VERSION, static_cast<long long>(layout.landing_bytes()));
  return layout.params()[0].padded_rows == 4 && layout.params()[0].landing(1) == 48 ? 0 : 1;
}
