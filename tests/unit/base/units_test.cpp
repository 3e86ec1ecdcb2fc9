// Sizes are read exactly or refused; what is printed reads back.
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sidestep/units.hpp>

namespace sidestep {
namespace {

constexpr Bytes max_bytes = std::numeric_limits<Bytes>::max();

Bytes bytes_of(std::string_view text) {
    const auto bytes = parse_bytes(text);
    EXPECT_TRUE(bytes.ok()) << text;
    return bytes.ok() ? *bytes : 0xdead;
}

TEST(Units, LiteralsArePowersOf1024) {
    EXPECT_EQ(1_KiB, Bytes{1024});
    EXPECT_EQ(3_MiB, Bytes{3} * 1024 * 1024);
    EXPECT_EQ(4_GiB, Bytes{4294967296});
}

TEST(ParseBytes, PlainNumbers) {
    EXPECT_EQ(bytes_of("0"), 0u);
    EXPECT_EQ(bytes_of("4096"), 4096u);
    EXPECT_EQ(bytes_of("4096B"), 4096u);
    EXPECT_EQ(bytes_of("4096 B"), 4096u);
    EXPECT_EQ(bytes_of("0007"), 7u);
}

TEST(ParseBytes, EveryUnit) {
    EXPECT_EQ(bytes_of("3K"), 3072u);
    EXPECT_EQ(bytes_of("3KiB"), 3072u);
    EXPECT_EQ(bytes_of("3M"), 3_MiB);
    EXPECT_EQ(bytes_of("3MiB"), 3_MiB);
    EXPECT_EQ(bytes_of("3 G"), 3_GiB);
    EXPECT_EQ(bytes_of("3GiB"), 3_GiB);
    EXPECT_EQ(bytes_of("3T"), 3 * 1024_GiB);
    EXPECT_EQ(bytes_of("3 TiB"), 3 * 1024_GiB);
    EXPECT_EQ(bytes_of("3kB"), 3000u);
    EXPECT_EQ(bytes_of("3KB"), 3000u);
    EXPECT_EQ(bytes_of("3MB"), 3000000u);
    EXPECT_EQ(bytes_of("3GB"), 3000000000u);
    EXPECT_EQ(bytes_of("3TB"), 3000000000000u);
}

TEST(ParseBytes, FractionsThatAreWholeBytes) {
    EXPECT_EQ(bytes_of("1.5 GiB"), 1536_MiB);
    EXPECT_EQ(bytes_of("0.5K"), 512u);
    EXPECT_EQ(bytes_of("0.25KiB"), 256u);
    EXPECT_EQ(bytes_of("1.0"), 1u);
    EXPECT_EQ(bytes_of("2.5kB"), 2500u);
    EXPECT_EQ(bytes_of("0.000000001GB"), 1u);
    // Not whole in binary floating point.
    EXPECT_EQ(bytes_of("1.1kB"), 1100u);
    EXPECT_EQ(bytes_of("4.35 kB"), 4350u);
    EXPECT_EQ(bytes_of("0.1MB"), 100000u);
    EXPECT_EQ(bytes_of("8388607.9999999990686774253845214843750000 TiB"), (Bytes{1} << 63) - 1024);
}

TEST(ParseBytes, RefusesAFractionOfAByte) {
    for (const char* text : {"0.5", "1.5B", "0.3KiB", "1.0001 KiB", "0.00001KiB", "9007199254740992.5",
                             "1.00000000000000000000001"}) {
        const auto bytes = parse_bytes(text);
        ASSERT_FALSE(bytes.ok()) << text;
        EXPECT_EQ(bytes.error().code, ErrorCode::invalid_argument);
    }
}

TEST(ParseBytes, LargeWholeNumbersAreExact) {
    // Above 2^53 a double would lose the last digits.
    EXPECT_EQ(bytes_of("9007199254740993"), 9007199254740993u);
    EXPECT_EQ(bytes_of("18446744073709551615"), max_bytes);
    EXPECT_EQ(bytes_of("18446744073709551614"), max_bytes - 1);
    EXPECT_EQ(bytes_of("18446744.073709551615TB"), max_bytes);
    EXPECT_EQ(bytes_of("16777215 TiB"), Bytes{16777215} << 40);
    EXPECT_EQ(bytes_of("17179869183GiB"), Bytes{17179869183} << 30);
}

TEST(ParseBytes, RefusesWhatDoesNotFit) {
    for (const char* text : {"18446744073709551616", "18446744073709551615K", "99999999999999999999",
                             "16777216TiB", "17179869184GiB", "18446744073709551616.0", "18446744073709552TB",
                             "1000000000000000000000000", "16777216.5TiB", "18446744.073709551616TB"}) {
        const auto bytes = parse_bytes(text);
        ASSERT_FALSE(bytes.ok()) << text;
        EXPECT_EQ(bytes.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(bytes.error().message.find("too large"), std::string::npos) << text;
    }
}

TEST(ParseBytes, RefusesWhatIsNone) {
    for (const char* text :
         {"",     " ",    "B",     "KiB",  "-1",   "+1",    " 1",     "1 ",  "1  KiB", "1k",     "1kib",
          "1kb",  "1b",   "1KIB",  "1Ki",  "1P",   "1.",    ".5",     ".",   "1..5K",  "1.5.5K", "1e3",
          "0x10", "1,5K", "1_000", "four", "1K B", "1KiBs", "1\tKiB", "nan", "inf"}) {
        const auto bytes = parse_bytes(text);
        ASSERT_FALSE(bytes.ok()) << "'" << text << "'";
        EXPECT_EQ(bytes.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(bytes.error().message.find(std::string("'") + text + "'"), std::string::npos);
        EXPECT_FALSE(bytes.error().hint.empty());
    }
}

TEST(FormatBytes, LargestUnitThatKeepsTheNumberAtOneOrAbove) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(123), "123 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1 KiB");
    EXPECT_EQ(format_bytes(4_KiB), "4 KiB");
    EXPECT_EQ(format_bytes(1536_MiB), "1.50 GiB");
    EXPECT_EQ(format_bytes(1000_MiB), "1000 MiB");
    EXPECT_EQ(format_bytes(1023_GiB), "1023 GiB");
    EXPECT_EQ(format_bytes(1024_GiB), "1 TiB");
    EXPECT_EQ(format_bytes(5000 * 1024_GiB), "5000 TiB");
    EXPECT_EQ(format_bytes(1500), "1.46 KiB");
    EXPECT_EQ(format_bytes(15000), "14.6 KiB");
    EXPECT_EQ(format_bytes(150000), "146 KiB");
}

TEST(FormatBytes, WholeMultiplesReadBack) {
    for (int shift = 0; shift < 54; ++shift) {
        const Bytes bytes = Bytes{3} << shift;
        EXPECT_EQ(bytes_of(format_bytes(bytes)), bytes) << format_bytes(bytes);
    }
}

TEST(FormatRate, ThreeSignificantDigits) {
    EXPECT_EQ(format_rate(0), "0 GB/s");
    EXPECT_EQ(format_rate(396.4), "396 GB/s");
    EXPECT_EQ(format_rate(55.51), "55.5 GB/s");
    EXPECT_EQ(format_rate(5.5), "5.50 GB/s");
    EXPECT_EQ(format_rate(0.0123), "0.0123 GB/s");
    EXPECT_EQ(format_rate(0.5), "0.500 GB/s");
    EXPECT_EQ(format_rate(1234), "1234 GB/s");
    EXPECT_EQ(format_rate(0.000045), "0.0000450 GB/s");
}

TEST(FormatRate, RoundingKeepsThreeDigits) {
    EXPECT_EQ(format_rate(9.996), "10.0 GB/s");
    EXPECT_EQ(format_rate(99.96), "100 GB/s");
    EXPECT_EQ(format_rate(0.9996), "1.00 GB/s");
}

TEST(FormatRate, NeverPrintsAnExponent) {
    for (const double rate : {1e-9, 1e-12, 1e9, 123456789.0})
        EXPECT_EQ(format_rate(rate).find('e'), std::string::npos) << format_rate(rate);
}

TEST(FormatSeconds, ChoosesTheUnit) {
    EXPECT_EQ(format_seconds(12.34), "12.3 s");
    EXPECT_EQ(format_seconds(1), "1.00 s");
    EXPECT_EQ(format_seconds(0.035), "35.0 ms");
    EXPECT_EQ(format_seconds(1.2e-6), "1.20 us");
    EXPECT_EQ(format_seconds(250e-9), "250 ns");
    EXPECT_EQ(format_seconds(3600), "3600 s");
}

TEST(FormatSeconds, ZeroHasAUnit) {
    EXPECT_EQ(format_seconds(0), "0 ns");
}

TEST(UnitsProperty, WholeBytesReadBackInEveryUnit) {
    std::mt19937_64 random(7);
    const std::vector<std::pair<std::string, Bytes>> units = {
        {"", 1},         {"B", 1},           {"K", 1_KiB},         {"KiB", 1_KiB},
        {"MiB", 1_MiB},  {"G", 1_GiB},       {"TiB", 1024_GiB},    {"kB", 1000},
        {"MB", 1000000}, {"GB", 1000000000}, {"TB", 1000000000000}};
    for (int i = 0; i < 20000; ++i) {
        const auto& [unit, factor] = units[random() % units.size()];
        const Bytes number = random() % (max_bytes / factor) >> random() % 40;
        ASSERT_EQ(bytes_of(std::to_string(number) + unit), number * factor) << number << unit;
    }
}

TEST(UnitsProperty, AnyTextFailsOrIsASize) {
    std::mt19937 random(11);
    const std::string letters = "0123456789.. KMGTiB kB-e+\xff";
    int valid = 0;
    for (int i = 0; i < 50000; ++i) {
        std::string text;
        for (unsigned n = random() % 12; n > 0; --n) text += letters[random() % letters.size()];
        const auto bytes = parse_bytes(text);
        if (bytes.ok()) {
            ++valid;
            // A size starts with a digit and its unit stands at the end.
            ASSERT_TRUE(text.front() >= '0' && text.front() <= '9') << text;
            ASSERT_EQ(text.find_first_of("-e+\xff"), std::string::npos) << text;
        } else {
            ASSERT_EQ(bytes.error().code, ErrorCode::invalid_argument) << text;
        }
    }
    EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace sidestep
