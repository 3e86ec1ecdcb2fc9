#include "driver/dynamic_library.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace sidestep::driver {
namespace {

TEST(DynamicLibrary, BindsFunctionsOfALibrary) {
    auto library = DynamicLibrary::open("libm.so.6");
    ASSERT_TRUE(library.ok()) << library.error().to_string();
    double (*cosine)(double) = nullptr;
    ASSERT_TRUE(library->bind(cosine, "cos").ok());
    EXPECT_EQ(cosine(0), 1);

    const auto missing = library->bind(cosine, "no_such_function");
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.error().code, ErrorCode::unsupported);
    EXPECT_EQ(missing.error().message, "libm.so.6 has no function no_such_function");
    EXPECT_EQ(cosine, nullptr);
    library->bind_optional(cosine, "no_such_function");
    EXPECT_EQ(cosine, nullptr);
}

TEST(DynamicLibrary, ItsFunctionsOutliveIt) {
    double (*cosine)(double) = nullptr;
    {
        auto library = DynamicLibrary::open("libm.so.6");
        ASSERT_TRUE(library.ok());
        DynamicLibrary moved = std::move(*library);
        EXPECT_EQ(library->address("cos"), nullptr) << "moved from";
        ASSERT_TRUE(moved.bind(cosine, "cos").ok());
    }
    EXPECT_EQ(cosine(0), 1);
}

TEST(DynamicLibrary, TellsAbsentFromBroken) {
    const auto absent = DynamicLibrary::open("libno-such-library.so.1");
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().code, ErrorCode::not_found);
    EXPECT_EQ(absent.error().message, "libno-such-library.so.1 was not found");

    std::string folder = (std::filesystem::temp_directory_path() / "sidestep-library-XXXXXX").string();
    folder = ::mkdtemp(folder.data());
    std::ofstream(folder + "/broken.so") << "this is not a library";
    const auto broken = DynamicLibrary::open(folder + "/broken.so");
    std::filesystem::remove_all(folder);
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().code, ErrorCode::unsupported);
    EXPECT_NE(broken.error().message.find("broken.so cannot be loaded: "), std::string::npos);
}

}  // namespace
}  // namespace sidestep::driver
