// Seeded damage to a text, for parsers that must answer any input with a value or a tide::Error.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tide/error.h"

namespace tide::test {

inline std::string damaged(std::string text, std::mt19937_64& random) {
  constexpr std::array<std::string_view, 24> kPieces{"{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     ",",
                                                     ":",
                                                     "\"",
                                                     "-1",
                                                     "1e999",
                                                     "0.5",
                                                     "null",
                                                     "true",
                                                     "{}",
                                                     "[[[[[",
                                                     "\\u0",
                                                     "\xFF",
                                                     "\\n",
                                                     "1e18",
                                                     "\0x",
                                                     "\"\"",
                                                     "1e-400",
                                                     "\"version\":2",
                                                     "99999999999999999999",
                                                     "-0"};
  for (uint64_t damage = 1 + random() % 3; damage > 0 && !text.empty(); --damage) {
    const size_t at = random() % text.size();
    switch (random() % 6) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ 1 << random() % 8);
        break;
      case 2:
        text.erase(at, 1 + random() % 12);
        break;
      case 3:
        text.insert(at, kPieces[random() % kPieces.size()]);
        break;
      case 4:
        text.replace(at, 1, kPieces[random() % kPieces.size()]);
        break;
      default:
        text.insert(at, text.substr(random() % text.size(), random() % 40));
    }
  }
  return text;
}

// Calls parse(text) on `count` damaged texts. Every refusal must be one line that says something.
template <typename Parse>
void survive(const std::string& text, int count, Parse&& parse) {
  std::mt19937_64 random(20240917);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string broken = damaged(text, random);
    try {
      parse(broken);
    } catch (const Error& error) {
      ++refused;
      const std::string sentence = error.what();
      ASSERT_GT(sentence.size(), 10U) << broken;
      ASSERT_LT(sentence.size(), 2000U) << broken;
      for (const char c : sentence) ASSERT_GE(static_cast<unsigned char>(c), 0x20) << broken << "\n" << sentence;
    }
  }
  EXPECT_GT(refused, count / 2);
}

}  // namespace tide::test
