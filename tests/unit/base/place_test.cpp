// Place prints and parses the same, and refuses everything else.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sidestep/place.hpp>

namespace sidestep {
namespace {

Place parsed(std::string_view text) {
    const auto place = Place::parse(text);
    EXPECT_TRUE(place.ok()) << text;
    return place.ok() ? *place : Place::file("<not a place>");
}

TEST(Place, DefaultIsHostMemoryOnAnyNode) {
    const Place place;
    EXPECT_TRUE(place.is_host());
    EXPECT_EQ(place.index(), -1);
    EXPECT_EQ(place.node(), "");
    EXPECT_EQ(place.path(), "");
    EXPECT_EQ(place, Place::host());
    EXPECT_EQ(place.to_string(), "host");
}

TEST(Place, KnowsItsKind) {
    EXPECT_EQ(Place::host(1).kind(), PlaceKind::host);
    EXPECT_TRUE(Place::host(1).is_host());
    EXPECT_FALSE(Place::host(1).is_gpu());
    EXPECT_EQ(Place::gpu(3).kind(), PlaceKind::gpu);
    EXPECT_TRUE(Place::gpu(3).is_gpu());
    EXPECT_FALSE(Place::gpu(3).is_file());
    EXPECT_EQ(Place::file("x").kind(), PlaceKind::file);
    EXPECT_TRUE(Place::file("x").is_file());
    EXPECT_FALSE(Place::file("x").is_host());
}

TEST(Place, ParsesEveryForm) {
    EXPECT_EQ(parsed("host"), Place::host());
    EXPECT_EQ(parsed("host:0"), Place::host(0));
    EXPECT_EQ(parsed("host:1"), Place::host(1));
    EXPECT_EQ(parsed("gpu:0"), Place::gpu(0));
    EXPECT_EQ(parsed("gpu:15"), Place::gpu(15));
    EXPECT_EQ(parsed("gpu:999999"), Place::gpu(999999));
    EXPECT_EQ(parsed("file:/data/x"), Place::file("/data/x"));
    EXPECT_EQ(parsed("file:relative/name"), Place::file("relative/name"));
    EXPECT_EQ(parsed("file:name with spaces"), Place::file("name with spaces"));
    EXPECT_EQ(parsed("file:gpu:0"), Place::file("gpu:0"));
    EXPECT_EQ(parsed("node7/host"), Place::host().on("node7"));
    EXPECT_EQ(parsed("node7/host:1"), Place::host(1).on("node7"));
    EXPECT_EQ(parsed("node7/gpu:1"), Place::gpu(1).on("node7"));
    EXPECT_EQ(parsed("node7/file:/data/x"), Place::file("/data/x").on("node7"));
    EXPECT_EQ(parsed("a.b-c_D9/gpu:1"), Place::gpu(1).on("a.b-c_D9"));
}

TEST(Place, ObjectsOfAStore) {
    for (const char* text : {"s3://bucket", "s3://bucket/", "s3://bucket/a key/with:signs@1+2"}) {
        const Place place = parsed(text);
        EXPECT_TRUE(place.is_file());
        EXPECT_EQ(place.to_string(), text);
        EXPECT_EQ("s3://" + place.path(), text);
        EXPECT_FALSE(place.node().empty());  // whatever is for this machine alone refuses it
        EXPECT_NE(place, Place::file(place.path()));
    }
    for (const char* text : {"s3://", "s3:///key", "s3:bucket", "node7/s3://bucket/key"})
        EXPECT_FALSE(Place::parse(text).ok()) << text;
    EXPECT_FALSE(Place::parse(std::string("s3://b/\0", 8)).ok());
}

// A node stands before a place of its own, and no node before that: however long the text is, it takes one look.
TEST(Place, ThereIsOneNodeAtMost) {
    EXPECT_FALSE(Place::parse("a/b/gpu:0").ok());
    std::string steps;
    for (int i = 0; i < 500'000; ++i) steps += "a/";
    EXPECT_FALSE(Place::parse(steps + "gpu:0").ok());
}

TEST(Place, PeerToPeerMemoryIsNamedByItsBusId) {
    const Place place = parsed("p2pmem:0000:03:00.0");
    EXPECT_EQ(place, Place::p2pmem("0000:03:00.0"));
    EXPECT_TRUE(place.is_p2pmem());
    EXPECT_FALSE(place.is_host() || place.is_gpu() || place.is_file() || place.is_shared());
    EXPECT_EQ(place.kind(), PlaceKind::p2pmem);
    EXPECT_EQ(place.path(), "0000:03:00.0");
    EXPECT_EQ(place.index(), -1);
    EXPECT_EQ(place.to_string(), "p2pmem:0000:03:00.0");
    EXPECT_EQ(parsed("node7/p2pmem:0001:af:1f.7"), Place::p2pmem("0001:af:1f.7").on("node7"));
    EXPECT_NE(place, Place::p2pmem("0000:04:00.0"));
    for (const char* text :
         {"p2pmem:", "p2pmem:0", "p2pmem:03:00.0", "p2pmem:0000:03:00", "p2pmem:0000:03:00.0 ",
          "p2pmem:0000:0G:00.0", "p2pmem:0000:AF:00.0", "p2pmem:0000-03-00.0", "p2pmem:00000:3:00.0"}) {
        const auto refused = Place::parse(text);
        ASSERT_FALSE(refused.ok()) << text;
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(refused.error().hint.find("0000:03:00.0"), std::string::npos) << refused.error().hint;
    }
}

TEST(Place, AFilePathIsTakenAsItIs) {
    EXPECT_EQ(parsed("file:a/file:b").path(), "a/file:b");
    EXPECT_EQ(parsed("node7/file:b/gpu:0").path(), "b/gpu:0");
    EXPECT_EQ(parsed("file:\xff\xfe").path(), "\xff\xfe");
}

TEST(Place, RefusesWhatIsNone) {
    const std::vector<std::string> bad = {"",
                                          " ",
                                          "h",
                                          "hosts",
                                          "Host",
                                          "HOST",
                                          " host",
                                          "host ",
                                          "host:",
                                          "host:-1",
                                          "host:+1",
                                          "host:01",
                                          "host:1 ",
                                          "host:1x",
                                          "host:1.5",
                                          "host: 1",
                                          "host:0x1",
                                          "host:1000000",
                                          "host:99999999999999999999",
                                          "gpu",
                                          "gpu:",
                                          "gpu:-1",
                                          "gpu:00",
                                          "gpu:1a",
                                          "gpu:1,2",
                                          "gpu:*",
                                          "cuda:0",
                                          "file",
                                          "file:",
                                          "/",
                                          "/host",
                                          "//host",
                                          "/data/x",
                                          "data/x",
                                          "model.bin",
                                          "node7/",
                                          "node7/node8/gpu:0",
                                          "no de/gpu:0",
                                          "node7//gpu:0",
                                          "node7/gpu:",
                                          "node7:gpu:0",
                                          "gpu:0/host",
                                          "n\xc3\xb8/gpu:0"};
    for (const auto& text : bad) {
        const auto place = Place::parse(text);
        ASSERT_FALSE(place.ok()) << "'" << text << "'";
        EXPECT_EQ(place.error().code, ErrorCode::invalid_argument) << text;
        EXPECT_NE(place.error().message.find("'" + text + "'"), std::string::npos) << text;
        EXPECT_FALSE(place.error().hint.empty()) << text;
    }
}

TEST(Place, RefusesAPathWithAZeroByte) {
    using namespace std::string_view_literals;
    EXPECT_FALSE(Place::parse("file:a\0b"sv).ok());
    EXPECT_FALSE(Place::parse("host\0"sv).ok());
    EXPECT_FALSE(Place::parse("gpu:1\0"sv).ok());
}

TEST(Place, SaysHowToNameAFile) {
    EXPECT_EQ(Place::parse("model.bin").error().hint, "for a file write file:model.bin");
    EXPECT_EQ(Place::parse("/data/x").error().hint, "for a file write file:/data/x");
    EXPECT_EQ(Place::parse("./x").error().hint, "for a file write file:./x");
    EXPECT_EQ(Place::parse("node7/data/x").error().hint,
              "for a file write file:node7/data/x, for one of node node7 node7/file:/data/x");
    EXPECT_NE(Place::parse("gpu:x").error().hint.find("number of a GPU"), std::string::npos);
    EXPECT_NE(Place::parse("host:x").error().hint.find("NUMA node"), std::string::npos);
}

TEST(Place, OnMovesAPlaceToAnotherMachineAndBack) {
    const Place here = Place::gpu(2);
    const Place there = here.on("node7");
    EXPECT_EQ(here.node(), "");
    EXPECT_EQ(there.node(), "node7");
    EXPECT_EQ(there.index(), 2);
    EXPECT_NE(here, there);
    EXPECT_EQ(there.on(""), here);
    EXPECT_EQ(there.to_string(), "node7/gpu:2");
}

TEST(Place, ComparesByEveryPart) {
    const std::vector<Place> different = {Place::host(),    Place::host(0),        Place::host(1),
                                          Place::gpu(0),    Place::gpu(1),         Place::file("a"),
                                          Place::file("b"), Place::gpu(0).on("a"), Place::gpu(0).on("b")};
    for (std::size_t i = 0; i < different.size(); ++i)
        for (std::size_t j = 0; j < different.size(); ++j)
            EXPECT_EQ(different[i] == different[j], i == j)
                << different[i].to_string() << " and " << different[j].to_string();
}

// Every valid place a generator makes: what it prints reads back as the same value.
class PlaceGenerator {
public:
    Place next() {
        Place place = kind();
        return one_of(2) == 0 ? place : place.on(text("abcXYZ019._-", 1, 12));
    }

    // Text that is often nearly a place.
    std::string nearly() {
        static const std::vector<std::string> pieces = {
            "host",    "gpu:", "file:", "host:", ":", "/",     "0", "1", "12",   "999999",
            "1000000", "-",    "+",     ".",     " ", "node7", "_", "x", "\xff", std::string(1, '\0'),
            "\n",      "HOST", "%s",    "{}",    "\\"};
        std::string text;
        const auto count = one_of(7);
        for (unsigned i = 0; i < count; ++i) text += pieces[one_of(static_cast<unsigned>(pieces.size()))];
        return text;
    }

private:
    unsigned one_of(unsigned count) { return static_cast<unsigned>(random_() % count); }

    std::string text(std::string_view letters, unsigned min, unsigned max) {
        std::string text;
        const unsigned size = min + one_of(max - min + 1);
        for (unsigned i = 0; i < size; ++i) text += letters[one_of(static_cast<unsigned>(letters.size()))];
        return text;
    }

    Place kind() {
        switch (one_of(4)) {
            case 0:
                return Place::host();
            case 1:
                return Place::host(static_cast<int>(one_of(1000000)));
            case 2:
                return Place::gpu(static_cast<int>(one_of(1000000)));
            default:
                return Place::file(text("ab/.:@+ -_\t\"'\xc3\xa9\xff", 1, 40));
        }
    }

    std::mt19937 random_{20240607};
};

TEST(PlaceProperty, PrintsAndParsesTheSame) {
    PlaceGenerator generator;
    for (int i = 0; i < 20000; ++i) {
        const Place place = generator.next();
        const auto again = Place::parse(place.to_string());
        ASSERT_TRUE(again.ok()) << place.to_string();
        ASSERT_EQ(*again, place) << place.to_string();
        ASSERT_EQ(again->to_string(), place.to_string());
    }
}

TEST(PlaceProperty, AnyTextFailsOrRoundTrips) {
    PlaceGenerator generator;
    int valid = 0;
    for (int i = 0; i < 50000; ++i) {
        const std::string text = generator.nearly();
        const auto place = Place::parse(text);
        if (!place) {
            ASSERT_EQ(place.error().code, ErrorCode::invalid_argument) << text;
            continue;
        }
        ++valid;
        ASSERT_EQ(place->to_string(), text);
    }
    // The generator is of use only if both ends happen often.
    EXPECT_GT(valid, 1000);
    EXPECT_LT(valid, 49000);
}

}  // namespace
}  // namespace sidestep
