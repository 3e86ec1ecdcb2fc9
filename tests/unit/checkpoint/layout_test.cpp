// Where tensors go: layouts, and the runs of any range, against a straightforward copy of every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "checkpoint/axes.hpp"
#include "checkpoint/placement.hpp"
#include "tests/contents.hpp"

namespace sidestep::checkpoint {
namespace {

using transfer::FileRange;
using transfer::Run;

TensorInfo tensor(const std::string& name, Dtype dtype, std::vector<std::uint64_t> shape, Bytes offset,
                  std::size_t file = 0) {
    TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.type_name = std::string(to_string(dtype));
    info.shape = std::move(shape);
    info.file = file;
    info.offset = offset;
    info.bytes = info.elements() * static_cast<Bytes>(bits_of(dtype)) / 8;
    return info;
}

TensorInfo quantised(const std::string& type, std::vector<std::uint64_t> shape, Bytes bytes) {
    TensorInfo info = tensor("q", Dtype::other, std::move(shape), 0);
    info.type_name = type;
    info.bytes = bytes;
    return info;
}

LoadPlacement placement_of(const std::vector<TensorInfo>& tensors, LayoutPlan plan,
                           std::vector<std::size_t> files = {0}) {
    return {std::make_shared<const std::vector<TensorInfo>>(tensors), std::move(plan), files};
}

std::vector<Run> runs_of(const LoadPlacement& placement, std::size_t file, FileRange range) {
    std::vector<Run> runs;
    placement.runs(file, range, runs);
    return runs;
}

std::string error_of(const Result<LayoutPlan>& plan) {
    return plan ? "no error" : plan.error().to_string();
}

// The bytes of part `place` of `places`, index by index.
std::string part_of(const TensorInfo& info, const std::string& bytes, std::optional<int> asked,
                    std::size_t place, std::size_t places) {
    if (!asked || bytes.empty()) return bytes;
    const auto axis =
        static_cast<std::size_t>(*asked < 0 ? static_cast<int>(info.shape.size()) + *asked : *asked);
    std::uint64_t outer = 1;
    for (std::size_t i = 0; i < axis; ++i) outer *= info.shape[i];
    const std::uint64_t extent = info.shape[axis];
    const Bytes inner = info.bytes / outer / extent;
    std::string part;
    for (std::uint64_t o = 0; o < outer; ++o)
        for (std::uint64_t i = place * extent / places; i < (place + 1) * extent / places; ++i)
            part += bytes.substr((o * extent + i) * inner, inner);
    return part;
}

struct Example {
    std::vector<TensorInfo> tensors;
    std::vector<std::string> files;
    Axes axes;
};

// Tensors of all whole-byte types in one to three files, with gaps, and empty ones between and within others.
Example random_example(std::mt19937& random) {
    const auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
    Example example;
    const unsigned files = 1 + below(3);
    for (unsigned file = 0; file < files; ++file) {
        Bytes at = 8 + below(100);
        for (unsigned count = 1 + below(8); count > 0; --count) {
            auto dtype = static_cast<Dtype>(below(22));
            if (bits_of(dtype) < 8) dtype = Dtype::bf16;
            std::vector<std::uint64_t> shape(below(4));
            for (auto& extent : shape) extent = below(10) == 0 ? 0 : 1 + below(12);
            example.tensors.push_back(
                tensor(fmt::format("t{}", example.tensors.size()), dtype, shape, at, file));
            at += example.tensors.back().bytes + (below(3) == 0 ? below(200) : 0);
            const int axes = static_cast<int>(shape.size());
            if (axes > 0 && below(2) == 0)
                example.axes.emplace_back(static_cast<int>(below(2 * shape.size())) - axes);
            else
                example.axes.emplace_back();
            if (const TensorInfo& last = example.tensors.back(); last.bytes > 1 && below(4) == 0) {
                const Bytes within = last.offset + below(static_cast<unsigned>(last.bytes));
                example.tensors.push_back(
                    tensor(fmt::format("t{}", example.tensors.size()), Dtype::u8, {0}, within, file));
                example.axes.emplace_back();
            }
        }
        example.files.push_back(test::text_of(at + below(50), random()));
    }
    return example;
}

// Every byte through runs of small ranges, in memories filled with another value.
std::vector<std::string> spread(const Example& example, const LoadPlacement& placement,
                                std::mt19937& random) {
    std::vector<std::string> memories;
    for (const Bytes bytes : placement.plan().memory) memories.emplace_back(bytes, '\x55');
    for (std::size_t file = 0; file < example.files.size(); ++file) {
        const std::string& bytes = example.files[file];
        for (Bytes at = 0; at < bytes.size();) {
            const Bytes end = std::min<Bytes>(bytes.size(), at + 1 + random() % 300);
            Bytes last = at;
            for (const Run& run : runs_of(placement, file, {at, end})) {
                EXPECT_GE(run.file_offset, last) << "not in the order of the file";
                EXPECT_LE(run.file_offset + run.size, end);
                EXPECT_GT(run.size, 0u);
                last = run.file_offset + run.size;
                for (std::size_t i = 0; i < memories.size(); ++i)
                    if (run.memory == Run::every_memory || run.memory == i)
                        memories[i].replace(run.memory_offset, run.size, bytes, run.file_offset, run.size);
            }
            at = end;
        }
    }
    return memories;
}

void expect_all_there(const Example& example, Layout layout, std::size_t places, std::mt19937& random) {
    const auto plan = lay_out(example.tensors, places, layout, example.axes);
    ASSERT_TRUE(plan) << plan.error().to_string();
    std::vector<std::size_t> files(example.files.size());
    for (std::size_t i = 0; i < files.size(); ++i) files[i] = i;
    const LoadPlacement placement = placement_of(example.tensors, *plan, files);
    const auto memories = spread(example, placement, random);
    Bytes arrived = 0;
    for (std::size_t i = 0; i < example.tensors.size(); ++i) {
        const TensorInfo& info = example.tensors[i];
        const std::string bytes = example.files[info.file].substr(info.offset, info.bytes);
        std::size_t holders = 0;
        for (std::size_t place = 0; place < places; ++place) {
            if (!plan->has(place, i)) continue;
            ++holders;
            const auto axis = layout == Layout::by_axis ? example.axes[i] : std::nullopt;
            const std::string wanted = part_of(info, bytes, axis, place, places);
            ASSERT_EQ(plan->bytes(info, i, place), wanted.size()) << info.name;
            ASSERT_EQ(memories[place].substr(plan->slots[i].offset, wanted.size()), wanted)
                << info.name << " at place " << place << " of " << places;
            arrived += wanted.size();
        }
        EXPECT_EQ(plan->slots[i].offset % tensor_alignment, 0u);
        EXPECT_EQ(holders, layout == Layout::by_tensor ? 1u : places);
    }
    EXPECT_EQ(plan->bytes_to_arrive(example.tensors), arrived);
}

TEST(Layouts, RandomCheckpointsAgreeWithAPlainCopy) {
    std::mt19937 random(7);
    for (int round = 0; round < 120; ++round) {
        const Example example = random_example(random);
        for (const Layout layout : {Layout::replicate, Layout::by_tensor, Layout::by_axis}) {
            expect_all_there(example, layout, 1 + random() % 8, random);
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Layouts, NeighboursStayNeighbours) {
    const std::vector<TensorInfo> tensors{tensor("a", Dtype::f32, {64}, 100),
                                          tensor("b", Dtype::f32, {128}, 356),
                                          tensor("c", Dtype::u8, {3}, 868), tensor("d", Dtype::u8, {5}, 871)};
    const auto plan = lay_out(tensors, 4, Layout::replicate);
    ASSERT_TRUE(plan);
    const auto runs = runs_of(placement_of(tensors, *plan), 0, {0, 1000});
    ASSERT_EQ(runs.size(), 2u);  // a, b and c are one; d begins anew
    EXPECT_EQ(runs[0].memory, Run::every_memory);
    EXPECT_EQ(runs[0].file_offset, 100u);
    EXPECT_EQ(runs[0].size, 771u);
    EXPECT_EQ(runs[1].memory_offset, 1024u);
    EXPECT_EQ(plan->memory[3], 1280u);
}

TEST(Layouts, TensorsAreBalancedTheLargestFirst) {
    std::vector<TensorInfo> tensors;
    Bytes at = 0;
    for (const std::uint64_t kib : {1, 7, 3, 5, 4, 4, 2, 6}) {
        tensors.push_back(tensor(fmt::format("t{}", tensors.size()), Dtype::u8, {kib << 10}, at));
        at += tensors.back().bytes;
    }
    const auto plan = lay_out(tensors, 4, Layout::by_tensor);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->memory, std::vector<Bytes>(4, 8 << 10));
    const LoadPlacement placement = placement_of(tensors, *plan);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(placement.memory_at(0, tensors[i].offset), plan->slots[i].place);
        EXPECT_EQ(placement.memory_at(0, tensors[i].offset + tensors[i].bytes - 1), plan->slots[i].place);
    }
    EXPECT_EQ(placement.memory_at(0, at), Run::every_memory);
    const auto again = lay_out(tensors, 4, Layout::by_tensor);
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(plan->slots[i].place, again->slots[i].place);
}

TEST(Layouts, NothingAtAll) {
    const std::vector<TensorInfo> tensors{tensor("none", Dtype::f64, {0, 7}, 8)};
    for (const Layout layout : {Layout::replicate, Layout::by_tensor, Layout::by_axis}) {
        const auto plan = lay_out(tensors, 3, layout, {0});
        ASSERT_TRUE(plan);
        EXPECT_GT(plan->memory[2], 0u);
        EXPECT_TRUE(runs_of(placement_of(tensors, *plan), 0, {0, 100}).empty());
    }
}

TEST(Layouts, MorePlacesThanThereIsToCut) {
    const std::vector<TensorInfo> tensors{tensor("w", Dtype::u8, {2, 3}, 0)};
    const auto plan = lay_out(tensors, 8, Layout::by_axis, {1});
    ASSERT_TRUE(plan);
    Bytes sum = 0;
    for (std::size_t place = 0; place < 8; ++place) sum += plan->bytes(tensors[0], 0, place);
    EXPECT_EQ(sum, 6u);
    EXPECT_EQ(plan->bytes(tensors[0], 0, 0), 0u);
    EXPECT_EQ(runs_of(placement_of(tensors, *plan), 0, {0, 6}).size(), 6u);
}

// A cut along the last axis is millions of strips: only those of the range that is asked for are made.
TEST(Layouts, StripsAreMadeForTheRangeAlone) {
    const std::vector<TensorInfo> tensors{tensor("w", Dtype::u8, {Bytes{1} << 30, 1 << 10}, 0)};
    const auto plan = lay_out(tensors, 8, Layout::by_axis, {-1});
    ASSERT_TRUE(plan);
    const Bytes begin = (Bytes{1} << 39) + 64;
    const auto runs = runs_of(placement_of(tensors, *plan), 0, {begin, begin + 256});
    ASSERT_EQ(runs.size(), 3u);
    EXPECT_EQ(runs[0].size, 64u);
    EXPECT_EQ(runs[0].memory, 0u);
    EXPECT_EQ(runs[0].memory_offset, (Bytes{1} << 36) + 64);
    EXPECT_EQ(runs[1].memory, 1u);
    EXPECT_EQ(runs[1].size, 128u);
}

TEST(Layouts, AxesThatAreNotThere) {
    const std::vector<TensorInfo> matrix{tensor("model.w", Dtype::f32, {4, 4}, 0)};
    for (const int axis : {2, -3, 99}) {
        const auto plan = lay_out(matrix, 2, Layout::by_axis, {axis});
        ASSERT_FALSE(plan);
        EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(error_of(plan).find("model.w"), std::string::npos) << error_of(plan);
    }
    const auto scalar = lay_out({tensor("s", Dtype::f32, {}, 0)}, 2, Layout::by_axis, {0});
    EXPECT_NE(error_of(scalar).find("scalar"), std::string::npos);
}

TEST(Layouts, SubByteTypesAreCutAtWholeBytes) {
    EXPECT_TRUE(lay_out({tensor("w", Dtype::f4, {3, 8}, 0)}, 4, Layout::by_axis, {1}));
    EXPECT_TRUE(lay_out({tensor("w", Dtype::f6_e2m3, {8, 4}, 0)}, 8, Layout::by_axis, {0}));
    const auto within = lay_out({tensor("w", Dtype::f4, {3, 8}, 0)}, 8, Layout::by_axis, {1});
    EXPECT_NE(error_of(within).find("within a byte"), std::string::npos) << error_of(within);
    const auto rows = lay_out({tensor("w", Dtype::f4, {2, 3, 2}, 0)}, 3, Layout::by_axis, {1});
    EXPECT_TRUE(rows) << error_of(rows);
    const auto odd_rows = lay_out({tensor("w", Dtype::f4, {2, 3}, 0)}, 3, Layout::by_axis, {1});
    EXPECT_NE(error_of(odd_rows).find("within a byte"), std::string::npos) << error_of(odd_rows);
}

TEST(Layouts, BlocksStayWhole) {
    const std::vector<TensorInfo> tensors{quantised("Q4_K", {6, 1024}, 6 * 4 * 144)};
    const auto rows = lay_out(tensors, 4, Layout::by_axis, {0});
    ASSERT_TRUE(rows) << error_of(rows);
    EXPECT_EQ(rows->bytes(tensors[0], 0, 1), 2u * 4 * 144);
    const auto columns = lay_out(tensors, 4, Layout::by_axis, {1});
    ASSERT_TRUE(columns) << error_of(columns);
    EXPECT_EQ(columns->bytes(tensors[0], 0, 3), 6u * 144);
    const auto within = lay_out(tensors, 8, Layout::by_axis, {1});
    EXPECT_NE(error_of(within).find("block of 256"), std::string::npos) << error_of(within);
    const auto unknown = lay_out({quantised("X9", {6, 1024}, 6144)}, 2, Layout::by_axis, {-1});
    EXPECT_NE(error_of(unknown).find("not known"), std::string::npos) << error_of(unknown);
}

TEST(Layouts, BytesOfNoElementsAreNotCut) {
    for (const auto& [shape, axis] :
         {std::pair{std::vector<std::uint64_t>{0, 4}, 1}, std::pair{std::vector<std::uint64_t>{0, 4}, 0},
          std::pair{std::vector<std::uint64_t>{4, 0}, -1},
          std::pair{std::vector<std::uint64_t>{4, 0, 3}, 0}}) {
        const auto plan = lay_out({quantised("X", shape, 9)}, 2, Layout::by_axis, {axis});
        EXPECT_EQ(plan ? ErrorCode::internal : plan.error().code, ErrorCode::invalid_argument);
    }
    const auto none = lay_out({quantised("X", {0, 4}, 9)}, 2, Layout::by_axis, {0});
    EXPECT_NE(error_of(none).find("no elements"), std::string::npos) << error_of(none);
}

TEST(Layouts, TensorsThatShareBytes) {
    const auto plan =
        lay_out({tensor("a", Dtype::u8, {10}, 0), tensor("b", Dtype::u8, {10}, 9)}, 1, Layout::replicate);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);
    const auto with_empty = lay_out(
        {tensor("a", Dtype::u8, {10}, 0), tensor("none", Dtype::u8, {0}, 5), tensor("b", Dtype::u8, {10}, 9)},
        1, Layout::replicate);
    EXPECT_NE(error_of(with_empty).find("a and b share bytes"), std::string::npos) << error_of(with_empty);
}

TEST(Layouts, NamesOfBytesBesideEmptyTensors) {
    const std::vector<TensorInfo> tensors{
        tensor("a", Dtype::u8, {100}, 0), tensor("none", Dtype::u8, {0}, 10),
        tensor("none too", Dtype::u8, {0}, 20), tensor("b", Dtype::u8, {10}, 100)};
    const auto plan = lay_out(tensors, 2, Layout::by_tensor);
    ASSERT_TRUE(plan) << plan.error().to_string();
    const LoadPlacement placement = placement_of(tensors, *plan);
    EXPECT_EQ(placement.name_of(0, 50), "tensor a");
    EXPECT_EQ(placement.name_of(0, 105), "tensor b");
    EXPECT_EQ(placement.memory_at(0, 50), plan->slots[0].place);
}

TEST(Ranges, OnlyWhatIsNeededIsRead) {
    const Bytes far = Bytes{1} << 20;
    const std::vector<TensorInfo> tensors{
        tensor("a", Dtype::u8, {100}, 50), tensor("b", Dtype::u8, {100}, 1000),
        tensor("e", Dtype::u8, {0}, 2000), tensor("c", Dtype::u8, {100}, far + 10, 1),
        tensor("d", Dtype::u8, {9}, 5 * far, 1)};
    const std::vector<CheckpointFile> files{{"x", 4000, 8, 0}, {"y", 5 * far + 9, 8, 0}, {"z", 100, 8, 0}};
    const auto ranges = ranges_of(tensors, files, 0);
    ASSERT_EQ(ranges.size(), 3u);
    ASSERT_EQ(ranges[0].size(), 1u);
    EXPECT_EQ(ranges[0][0].begin, 50u);
    EXPECT_EQ(ranges[0][0].end, 1100u);
    ASSERT_EQ(ranges[1].size(), 2u);
    EXPECT_EQ(ranges[1][1].begin, 5 * far);
    EXPECT_TRUE(ranges[2].empty());
    const auto blocks = ranges_of(tensors, files, far);
    EXPECT_EQ(blocks[0][0].begin, 0u);
    EXPECT_EQ(blocks[0][0].end, 4000u);
    ASSERT_EQ(blocks[1].size(), 2u);
    EXPECT_EQ(blocks[1][0].begin, 0u) << "the header's block";
    EXPECT_EQ(blocks[1][0].end, 2 * far);
    EXPECT_EQ(blocks[1][1].begin, 5 * far);
    EXPECT_EQ(blocks[1][1].end, 5 * far + 9);
    EXPECT_TRUE(blocks[2].empty());
}

TEST(Rules, TheFirstThatFitsCounts) {
    const std::vector<TensorInfo> tensors{tensor("a.weight", Dtype::u8, {4, 4}, 0),
                                          tensor("b.weight", Dtype::u8, {4, 4}, 16),
                                          tensor("norm", Dtype::u8, {4}, 32)};
    const auto ruled = axes_of(tensors, {{"a.*", 1}, {"*.weight", 0}, {"a.weight", 0}, {"head", -1}});
    ASSERT_TRUE(ruled);
    EXPECT_EQ(ruled->axes[0], 1);
    EXPECT_EQ(ruled->axes[1], 0);
    EXPECT_FALSE(ruled->axes[2]);
    ASSERT_EQ(ruled->notes.size(), 2u);
    EXPECT_NE(ruled->notes[0].find("rule 3"), std::string::npos);
    EXPECT_NE(ruled->notes[1].find("head"), std::string::npos);
    const auto broken = axes_of(tensors, {{"a.*", 1}, {"[", 0}});
    ASSERT_FALSE(broken);
    EXPECT_NE(broken.error().message.find("rule 2"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::checkpoint
