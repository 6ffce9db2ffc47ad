// FNV-1a, 64 bits, over values. Strings are hashed with their length, so that neighbours cannot trade bytes.
#pragma once

#include <cstdint>
#include <string_view>

namespace tide {

class Fnv {
 public:
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    for (const char c : text) byte(static_cast<unsigned char>(c));
  }
  void add(int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<unsigned char>(static_cast<uint64_t>(value) >> shift));
  }
  uint64_t value() const { return hash_; }

 private:
  void byte(unsigned char b) { hash_ = (hash_ ^ b) * 0x100000001B3; }

  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace tide
