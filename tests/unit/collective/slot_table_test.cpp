// Where memory of ranks lies here, and what another rank says of its own.
#include "protocol/slot_table.hpp"

#include <array>

#include <gtest/gtest.h>

namespace sidestep::protocol {
namespace {

TEST(SlotTable, NothingOutsideOfWhatIsMappedIsFound) {
    constexpr std::uint64_t most = ~std::uint64_t{0};
    std::array<char, 100> memory{};
    SlotTable table(3);
    table.set(1, 7, memory);
    struct Case {
        unsigned rank, slot;
        std::uint64_t offset, bytes;
        bool found;
    };
    for (const Case& one :
         {Case{1, 7, 0, 0, true}, Case{1, 7, 0, 100, true}, Case{1, 7, 99, 1, true}, Case{1, 7, 100, 0, true},
          Case{1, 7, 0, 101, false}, Case{1, 7, 100, 1, false}, Case{1, 7, 101, 0, false},
          Case{1, 7, 1, 100, false}, Case{1, 7, most, 1, false}, Case{1, 7, 1, most, false},
          Case{1, 7, most, most, false}, Case{1, 7, most - 50, 100, false},
          Case{1, 7, std::uint64_t{1} << 48, 0, false}, Case{1, 6, 0, 0, false}, Case{2, 7, 0, 1, false},
          Case{1, max_slots, 0, 0, false}, Case{2, max_slots, 0, 0, false}, Case{1, 0xffff, 0, 0, false}}) {
        char* const found = table.find(one.rank, one.slot, one.offset, one.bytes);
        EXPECT_EQ(found, one.found ? memory.data() + one.offset : nullptr)
            << "rank " << one.rank << ", slot " << one.slot << ", " << one.bytes << " bytes from "
            << one.offset;
    }
    table.set(1, 7, {});
    EXPECT_EQ(table.find(1, 7), nullptr);
}

}  // namespace
}  // namespace sidestep::protocol
