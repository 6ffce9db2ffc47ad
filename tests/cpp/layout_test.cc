#include "tide/layout.h"

#include <algorithm>
#include <random>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tide/error.h"

namespace tide {
namespace {

using Shape = std::vector<int64_t>;

Group group_of(const std::vector<Shape>& shapes, DType dtype = DType::f32) {
  Group group{"g", {}};
  for (const Shape& shape : shapes) group.tensors.push_back({fmt::format("t{}", group.tensors.size()), shape, dtype});
  return group;
}

Layout layout_of(const std::vector<Shape>& shapes, int64_t world, int64_t alignment = 256, DType dtype = DType::f32) {
  return Layout(group_of(shapes, dtype), {.world = world, .alignment = alignment});
}

std::string complaint(const Group& group, const LayoutOptions& options) {
  try {
    const Layout layout(group, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "none";
}

// One character an element of `rank`'s packed output: the tensor's letter, or 0 for padding.
std::string packed_text(const Layout& layout, int64_t rank) {
  std::string text;
  for (size_t p = 0; p < layout.params().size(); ++p) {
    if (!text.empty()) text += ' ';
    text += std::string(static_cast<size_t>(layout.params()[p].padded_elements()), '0');
  }
  std::vector<size_t> places;  // of packed elements in the text
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ') places.push_back(i);
  }
  for (const Segment& segment : segments(layout, rank, {}, 0, layout.packed_grad_elements())) {
    for (int64_t e = 0; e < segment.elements; ++e) {
      text[places[static_cast<size_t>(segment.packed_begin + e)]] = static_cast<char>('A' + segment.param);
    }
  }
  return text;
}

TEST(Layout, GoldenRowsOfWorldThree) {
  const Layout layout = layout_of({{2, 4}, {3, 3}, {1, 2}}, 3);
  EXPECT_EQ(packed_text(layout, 0), "AAAA BBB CC");
  EXPECT_EQ(packed_text(layout, 1), "AAAA BBB 00");
  EXPECT_EQ(packed_text(layout, 2), "0000 BBB 00");
  EXPECT_EQ(layout.packed_grad_elements(), 9);
  EXPECT_EQ(layout.elements(), 19);
}

TEST(Layout, GoldenRowsOfWorldTwo) {
  const Layout layout = layout_of({{2, 4}, {3, 3}, {1, 2}, {4, 2}}, 2);
  EXPECT_EQ(packed_text(layout, 0), "AAAA BBBBBB CC DDDD");
  EXPECT_EQ(packed_text(layout, 1), "AAAA BBB000 00 DDDD");
}

TEST(Layout, GoldenAddresses) {
  const Layout layout = layout_of({{2, 4}, {3, 3}, {1, 2}}, 3, 64);
  const auto params = layout.params();
  // Shards of 16, 12 and 8 bytes: landings of 48, 36 and 24.
  EXPECT_EQ(params[0].landing(0), 0);
  EXPECT_EQ(params[0].landing(2), 32);
  EXPECT_EQ(params[1].landing(0), 64);
  EXPECT_EQ(params[1].landing(1), 76);
  EXPECT_EQ(params[2].landing(0), 128);
  EXPECT_EQ(layout.landing_bytes(), 152);
  EXPECT_EQ(params[1].packed_shard_base, 16);
  EXPECT_EQ(params[2].packed_shard_base, 32);
  EXPECT_EQ(layout.packed_shard_bytes(), 40);
  EXPECT_EQ(params[1].packed_grad_element, 4);
  EXPECT_EQ(params[2].packed_grad_element, 7);
}

TEST(Layout, AlignmentOneIsThePapersEquation) {
  std::mt19937_64 random(1);
  for (int64_t world : {1, 2, 3, 5, 8}) {
    std::vector<Shape> shapes;
    for (int i = 0; i < 20; ++i) shapes.push_back({int64_t(random() % 20), int64_t(random() % 9)});
    const Layout layout = layout_of(shapes, world, 1, DType::bf16);
    int64_t before = 0;  // sum of s_q over q < p
    for (size_t p = 0; p < shapes.size(); ++p) {
      const int64_t s = (shapes[p][0] + world - 1) / world * shapes[p][1] * 2;
      for (int64_t r = 0; r < world; ++r) EXPECT_EQ(layout.params()[p].landing(r), world * before + r * s);
      before += s;
    }
    EXPECT_EQ(layout.landing_bytes(), world * before);
  }
}

TEST(Layout, ShapesOfNoDimensionAndOfNoElements) {
  const Layout layout = layout_of({{}, {0}, {0, 5}, {4, 0}, {1}}, 3);
  const auto params = layout.params();
  EXPECT_EQ(params[0].rows, 1);
  EXPECT_EQ(params[0].row_elements, 1);
  EXPECT_EQ(params[0].valid_elements(0), 1);
  EXPECT_EQ(params[0].valid_elements(1), 0);
  for (size_t p : {1U, 2U, 3U}) {
    EXPECT_EQ(params[p].elements(), 0);
    EXPECT_EQ(params[p].shard_bytes, 0);
    EXPECT_EQ(params[p].padded_elements(), 0);
  }
  EXPECT_EQ(params[3].padded_rows, 2);
  EXPECT_EQ(layout.packed_grad_elements(), 2);
  EXPECT_EQ(layout.elements(), 2);

  const Layout nothing(Group{"empty", {}}, {.world = 4});
  EXPECT_EQ(nothing.landing_bytes(), 0);
  EXPECT_EQ(nothing.elements(), 0);
  EXPECT_TRUE(segments(nothing, 0, {}, 0, 100).empty());
}

TEST(Layout, CastsOnlyWhatTheFoldCanRead) {
  Group group{"g", {}};
  const std::vector<DType> dtypes{DType::f64, DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::i64};
  for (const DType dtype : dtypes) group.tensors.push_back({std::string(name(dtype)), {4, 2}, dtype});
  const Layout cast(group, {.world = 2, .cast = true, .gather_dtype = DType::f16});
  const std::vector<DType> gathered{DType::f64, DType::f16, DType::f16, DType::f16, DType::f8_e4m3, DType::i64};
  for (size_t p = 0; p < dtypes.size(); ++p) {
    EXPECT_EQ(cast.params()[p].shard_dtype, dtypes[p]);
    EXPECT_EQ(cast.params()[p].gather_dtype, gathered[p]);
    EXPECT_EQ(cast.params()[p].shard_bytes, 4 * itemsize(gathered[p]));
    EXPECT_EQ(cast.params()[p].row_bytes, 2 * itemsize(gathered[p]));
  }
  const Layout kept(group, {.world = 2, .cast = false, .gather_dtype = DType::f16});
  EXPECT_EQ(kept.params()[1].gather_dtype, DType::f32);
}

TEST(Layout, FrozenTensorsHaveNoPlaceInTheOutput) {
  Group group = group_of({{3, 2}, {4}, {5, 1}});
  group.tensors[1].trainable = false;
  const Layout layout(group, {.world = 2});
  EXPECT_EQ(layout.params()[0].packed_grad_element, 0);
  EXPECT_EQ(layout.params()[1].packed_grad_element, -1);
  EXPECT_EQ(layout.params()[2].packed_grad_element, 4);
  EXPECT_EQ(layout.packed_grad_elements(), 7);
  EXPECT_EQ(packed_elements(layout, {}), 7);
  EXPECT_EQ(packed_elements(layout, {false, true, true}), 3);
  const auto left = segments(layout, 0, {false, true, true}, 0, 3);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].param, 2);
  EXPECT_EQ(left[0].packed_begin, 0);
  EXPECT_EQ(left[0].elements, 3);
}

// Lists that meet every odd case: fewer rows than ranks, primes, 0-dim, empty, one row.
const std::vector<std::vector<Shape>> kLists{{{2, 4}, {3, 3}, {1, 2}},
                                             {{20, 3}},
                                             {{1, 17}},
                                             {{2, 33}},
                                             {{}},
                                             {{0}},
                                             {{1}},
                                             {{5, 7}},
                                             {{7, 2, 3}, {}, {0, 4}, {16}, {15, 1}, {17, 5}}};

class LayoutOfWorld : public testing::TestWithParam<int64_t> {};

TEST_P(LayoutOfWorld, EveryRowBelongsToOneRankAndLandingsDoNotOverlap) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  std::vector<std::vector<Shape>> lists = kLists;
  for (int i = 0; i < 60; ++i) {
    lists.emplace_back();
    for (uint64_t t = random() % 9; t > 0; --t) {
      Shape shape;
      for (uint64_t d = random() % 4; d > 0; --d) shape.push_back(static_cast<int64_t>(random() % 23));
      lists.back().push_back(shape);
    }
  }
  for (const auto& shapes : lists) {
    for (const int64_t alignment : {1, 16, 256}) {
      const Layout layout = layout_of(shapes, GetParam(), alignment, DType::bf16);
      int64_t landing_end = 0;
      int64_t shard_end = 0;
      for (const ParamLayout& param : layout.params()) {
        // Rows in rank order, without gap or overlap; the landing of a row is where the whole tensor has it.
        int64_t row = 0;
        for (int64_t r = 0; r < layout.world(); ++r) {
          EXPECT_EQ(param.first_row(r), row);
          EXPECT_GE(param.valid_rows(r), 0);
          EXPECT_LE(param.valid_rows(r), param.padded_rows);
          if (param.valid_rows(r) > 0) {
            EXPECT_EQ(param.landing(r), param.landing_base + row * param.row_bytes);
          }
          row += param.valid_rows(r);
        }
        EXPECT_EQ(row, param.rows);
        EXPECT_EQ(param.landing_base % alignment, 0);
        EXPECT_GE(param.landing_base, landing_end);
        EXPECT_LT(param.landing_base - landing_end, alignment);
        landing_end = param.landing_base + layout.world() * param.shard_bytes;
        EXPECT_EQ(param.packed_shard_base % 16, 0);
        EXPECT_GE(param.packed_shard_base, shard_end);
        EXPECT_LT(param.packed_shard_base - shard_end, 16);
        shard_end = param.packed_shard_base + param.padded_elements() * itemsize(param.shard_dtype);
      }
      EXPECT_EQ(layout.landing_bytes(), landing_end);
      EXPECT_EQ(layout.packed_shard_bytes(), shard_end);
    }
  }
}

// What segments() must say about each packed element, the slow way: tensor and element within its shard, -1 for
// padding.
std::vector<std::pair<int64_t, int64_t>> packed_reference(const Layout& layout, int64_t rank,
                                                          const std::vector<bool>& present) {
  std::vector<std::pair<int64_t, int64_t>> elements;
  for (size_t p = 0; p < layout.params().size(); ++p) {
    const ParamLayout& param = layout.params()[p];
    if (!param.trainable || (!present.empty() && !present[p])) continue;
    for (int64_t e = 0; e < param.padded_elements(); ++e) {
      const int64_t row = rank * param.padded_rows + e / param.row_elements;
      elements.emplace_back(row < param.rows ? static_cast<int64_t>(p) : -1, e);
    }
  }
  return elements;
}

TEST_P(LayoutOfWorld, SegmentsPartitionEveryCut) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()) + 100);
  for (int i = 0; i < 40; ++i) {
    Group group = group_of(kLists[random() % kLists.size()]);
    for (TensorSpec& tensor : group.tensors) tensor.trainable = random() % 4 != 0;
    const Layout layout(group, {.world = GetParam()});
    std::vector<bool> present;
    if (i % 2 == 0) {
      for (size_t t = 0; t < group.tensors.size(); ++t) present.push_back(random() % 3 != 0);
    }
    const int64_t packed = packed_elements(layout, present);
    if (present.empty()) {
      EXPECT_EQ(packed, layout.packed_grad_elements());
    }
    for (int64_t rank = 0; rank < GetParam(); ++rank) {
      const auto reference = packed_reference(layout, rank, present);
      ASSERT_EQ(packed, static_cast<int64_t>(reference.size()));
      std::vector<std::pair<int64_t, int64_t>> seen(reference.size(), {-1, -1});
      for (int64_t begin = 0; begin < packed;) {
        const int64_t end = std::min(packed, begin + 1 + static_cast<int64_t>(random() % 17));
        int64_t last = begin;
        for (const Segment& segment : segments(layout, rank, present, begin, end)) {
          ASSERT_GT(segment.elements, 0);
          ASSERT_GE(segment.packed_begin, last);
          last = segment.packed_begin + segment.elements;
          ASSERT_LE(last, end);
          for (int64_t e = 0; e < segment.elements; ++e) {
            seen[static_cast<size_t>(segment.packed_begin + e)] = {segment.param, segment.param_begin + e};
          }
        }
        EXPECT_TRUE(segments(layout, rank, present, begin, begin).empty());
        begin = end;
      }
      for (size_t e = 0; e < reference.size(); ++e) {
        ASSERT_EQ(seen[e].first, reference[e].first) << "rank " << rank << " element " << e;
        if (reference[e].first >= 0) {
          ASSERT_EQ(seen[e].second, reference[e].second);
        }
      }
    }
  }
}

TEST_P(LayoutOfWorld, EveryElementIsReducedByOneRank) {
  const Layout layout = layout_of({{7, 2, 3}, {}, {0, 4}, {16}, {15, 1}, {17, 5}, {2, 33}}, GetParam());
  std::vector<std::vector<int>> owners;
  for (const ParamLayout& param : layout.params()) owners.emplace_back(static_cast<size_t>(param.elements()), 0);
  for (int64_t rank = 0; rank < GetParam(); ++rank) {
    for (const Segment& segment : segments(layout, rank, {}, 0, layout.packed_grad_elements())) {
      const ParamLayout& param = layout.params()[static_cast<size_t>(segment.param)];
      const int64_t first = param.first_row(rank) * param.row_elements + segment.param_begin;
      for (int64_t e = 0; e < segment.elements; ++e) {
        ++owners[static_cast<size_t>(segment.param)][static_cast<size_t>(first + e)];
      }
    }
  }
  for (const auto& param : owners) EXPECT_TRUE(std::all_of(param.begin(), param.end(), [](int n) { return n == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, LayoutOfWorld, testing::Values(1, 2, 3, 5, 7, 8, 16));

TEST(Layout, ListsAtTheirWorlds) {
  const Layout rows = layout_of({{20, 6}}, 8);  // 3 rows a rank, 2 in rank 6, none in rank 7
  EXPECT_EQ(rows.params()[0].padded_rows, 3);
  EXPECT_EQ(rows.params()[0].valid_rows(6), 2);
  EXPECT_EQ(rows.params()[0].valid_rows(7), 0);
  EXPECT_EQ(rows.params()[0].first_row(7), 20);

  const Layout few = layout_of({{2, 40}}, 8);
  EXPECT_EQ(few.params()[0].padded_rows, 1);
  EXPECT_EQ(few.params()[0].valid_rows(1), 1);
  EXPECT_EQ(few.params()[0].valid_rows(2), 0);

  const Layout odd = layout_of({{5, 9}}, 2);
  EXPECT_EQ(odd.params()[0].valid_elements(0), 27);
  EXPECT_EQ(odd.params()[0].valid_elements(1), 18);

  const Layout prime = layout_of({{10556587}}, 8);
  EXPECT_EQ(prime.params()[0].padded_rows, 1319574);
  EXPECT_EQ(prime.params()[0].valid_rows(7), 10556587 - 7 * 1319574);
}

TEST(Layout, BeyondThirtyTwoBits) {
  // 2^33 + 3 rows of 5 f32 elements: more than 2^35 elements.
  const int64_t rows = (int64_t{1} << 33) + 3;
  const Layout layout = layout_of({{7}, {rows, 5}, {3}}, 4);
  const ParamLayout& large = layout.params()[1];
  EXPECT_EQ(large.padded_rows, (int64_t{1} << 31) + 1);
  EXPECT_EQ(large.shard_bytes, ((int64_t{1} << 31) + 1) * 20);
  EXPECT_EQ(large.landing(3), 256 + 3 * large.shard_bytes);
  EXPECT_EQ(large.valid_rows(3), (int64_t{1} << 31));
  const int64_t cut = (int64_t{1} << 33) + 1;
  const auto pieces = segments(layout, 3, {}, cut, cut + 10);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].param, 1);
  EXPECT_EQ(pieces[0].param_begin, cut - 2);
  EXPECT_EQ(pieces[0].elements, 10);

  const int64_t bytes = (int64_t{1} << 31) + 5;
  const Layout one_byte = layout_of({{bytes}, {1}}, 1, 256, DType::u8);
  EXPECT_EQ(one_byte.params()[0].shard_bytes, bytes);
  EXPECT_EQ(one_byte.params()[1].landing_base, (int64_t{1} << 31) + 256);
}

TEST(Layout, ThreeHundredTensors) {
  std::vector<Shape> shapes;
  for (int64_t i = 0; i < 300; ++i) shapes.push_back({i % 11, i % 7 + 1});
  const Layout layout = layout_of(shapes, 8);
  ASSERT_EQ(layout.params().size(), 300U);
  int64_t valid = 0;
  for (int64_t rank = 0; rank < 8; ++rank) {
    for (const Segment& s : segments(layout, rank, {}, 0, layout.packed_grad_elements())) valid += s.elements;
  }
  EXPECT_EQ(valid, layout.elements());
}

TEST(Layout, RefusalsNameTensorFieldAndValue) {
  const Group good = group_of({{2, 2}});
  EXPECT_EQ(complaint(good, {.world = 0}), "world is 0 for group 'g': give 1 to 2^31-1 ranks");
  EXPECT_EQ(complaint(good, {.alignment = 48}), "alignment is 48 for group 'g': give a power of two up to 2^30");
  EXPECT_EQ(complaint(good, {.alignment = 0}), "alignment is 0 for group 'g': give a power of two up to 2^30");
  EXPECT_EQ(complaint(good, {.cast = true, .gather_dtype = DType::i32}),
            "gather dtype is i32 for group 'g': give f32, bf16 or f16");
  EXPECT_EQ(complaint(Group{"", {}}, {}), "a group has an empty name: name every group");
  EXPECT_EQ(complaint(Group{"g", {{"", {1}}}}, {}), "a tensor of group 'g' has an empty name: name every tensor");
  EXPECT_EQ(complaint(Group{"g", {{"w", {1}}, {"w", {2}}}}, {}),
            "tensor 'w' of group 'g': the name is used twice: names must differ");
  EXPECT_EQ(complaint(group_of({{2, -3}}), {}), "tensor 't0' of group 'g': shape[1] is -3: give extents of 0 or more");
}

TEST(Layout, RefusesSizesThatOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<Shape> shapes{{kMost},
                                  {kMost, kMost},
                                  {1, kMost, 2},
                                  {int64_t{1} << 40, 1 << 30},
                                  {1 << 30, kMost},
                                  {0, int64_t{1} << 60},
                                  {0, kMost, 2},
                                  {int64_t{1} << 59},
                                  {3, int64_t{1} << 57}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::u8, DType::f64}) {
      const std::string sentence = complaint(group_of({shape}, dtype), {.world = 7});
      EXPECT_NE(sentence.find("tensor 't0' of group 'g': shape ["), std::string::npos) << sentence;
      EXPECT_NE(sentence.find("2^61 bytes"), std::string::npos) << sentence;
    }
  }
  // Few elements, but a row for every rank.
  EXPECT_NE(complaint(group_of({{1, int64_t{1} << 40}}), {.world = 1 << 30}).find("2^61"), std::string::npos);
  // No tensor is too large, all together are.
  std::vector<Shape> many(20, Shape{int64_t{1} << 57});
  EXPECT_NE(complaint(group_of(many, DType::u8), {}).find("the group needs more than 2^61 bytes"), std::string::npos);
  // Extents next to an extent of zero are only numbers.
  EXPECT_EQ(complaint(group_of({{1 << 20, 0, int64_t{1} << 50}}), {.world = 3}), "none");
}

TEST(DTypes, NamesAndSizes) {
  const std::vector<std::pair<DType, int64_t>> sizes{
      {DType::f64, 8}, {DType::f32, 4}, {DType::bf16, 2}, {DType::f16, 2}, {DType::f8_e4m3, 1}, {DType::f8_e5m2, 1},
      {DType::i64, 8}, {DType::i32, 4}, {DType::i16, 2},  {DType::i8, 1},  {DType::u8, 1},      {DType::boolean, 1}};
  for (const auto& [dtype, bytes] : sizes) {
    EXPECT_EQ(itemsize(dtype), bytes);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), DType::f8_e4m3);
  EXPECT_THROW(parse_dtype("complex64"), Error);
  EXPECT_TRUE(castable(DType::f32, DType::bf16));
  EXPECT_TRUE(castable(DType::i64, DType::i64));
  EXPECT_FALSE(castable(DType::f64, DType::f32));
}

TEST(Errors, NamesAndRecovery) {
  EXPECT_EQ(name(ErrorCode::peer_lost), "peer_lost");
  EXPECT_EQ(name(ErrorCode::check_failed), "check_failed");
  EXPECT_TRUE(recoverable(ErrorCode::timeout));
  EXPECT_FALSE(recoverable(ErrorCode::mismatch));
  EXPECT_FALSE(recoverable(ErrorCode::closed));
}

}  // namespace
}  // namespace tide
