// What is found again, what is attached anew, and how much is kept.
#include "transfer/registrations.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "fake_backend.hpp"

namespace sidestep {
namespace {

using test::FakeBackend;
using transfer::Registrations;

class RegistrationsTest : public testing::Test {
protected:
    std::shared_ptr<backend::Registration> get(const Buffer& buffer, std::uint64_t identity,
                                               backend::Access access = backend::Access::read) {
        backend::AttachOptions options;
        options.access = access;
        options.identity = identity;
        auto found = registrations.get(fake, buffer, options);
        EXPECT_TRUE(found);
        return found ? *found : nullptr;
    }
    Buffer at(Bytes offset, Bytes size) { return Buffer::gpu(0, memory.data() + offset, size); }

    std::vector<char> memory = std::vector<char>(1_MiB);
    FakeBackend fake{FakeBackend::Script{}};
    Registrations registrations;  // after the backend, so that it goes first
};

TEST_F(RegistrationsTest, TheSameMemoryIsAttachedOnce) {
    const auto first = get(at(0, 4096), 7);
    EXPECT_EQ(get(at(0, 4096), 7), first);
    EXPECT_EQ(fake.attached, 1);
    EXPECT_EQ(first->buffer().size(), 4096u);
}

TEST_F(RegistrationsTest, OtherRangesAndOtherAccessAreAttachedThemselves) {
    const auto whole = get(at(0, 8192), 7);
    EXPECT_NE(get(at(0, 4096), 7), whole);
    EXPECT_NE(get(at(4096, 4096), 7), whole);
    EXPECT_NE(get(at(0, 8192), 7, backend::Access::write), whole);
    EXPECT_NE(get(Buffer::gpu(0, static_cast<const char*>(memory.data()), 8192), 7), whole);
    EXPECT_EQ(fake.attached, 5);
}

TEST_F(RegistrationsTest, FreedMemoryIsNotServedWhenItsAddressIsGivenOutAgain) {
    auto before = get(at(0, 4096), 7);
    const auto after = get(at(0, 4096), 8);
    EXPECT_NE(before, after);
    before.reset();
    EXPECT_EQ(fake.attached, 1);
    EXPECT_EQ(get(at(0, 4096), 8), after);
}

TEST_F(RegistrationsTest, MemoryThatCannotBeToldIsNeverKept) {
    get(at(0, 4096), 0);
    EXPECT_EQ(fake.attached, 0);
    get(Buffer::file("/tmp/x", 0, 5), 9);
    EXPECT_EQ(fake.attached, 0);
}

TEST_F(RegistrationsTest, FreedRangesAreForgotten) {
    for (Bytes offset = 0; offset < 10; ++offset) get(at(offset * 4096, 4096), 7);
    registrations.forget(at(2 * 4096, 3 * 4096));
    EXPECT_EQ(fake.attached, 7);
    get(at(1 * 4096, 4096), 7);
    get(at(5 * 4096, 4096), 7);
    EXPECT_EQ(fake.attached, 7);
    get(at(2 * 4096, 4096), 7);
    EXPECT_EQ(fake.attached, 8);
}

TEST_F(RegistrationsTest, TheOneThatWasNotAskedForTheLongestGoes) {
    const auto held = get(at(0, 1), 1);
    for (Bytes i = 1; i < Registrations::max_kept; ++i) get(at(i, 1), 1);
    const auto again = get(at(1, 1), 1);     // now 2 is the oldest but one
    get(at(Registrations::max_kept, 1), 1);  // the first goes
    constexpr int kept = static_cast<int>(Registrations::max_kept);
    EXPECT_EQ(fake.attached, kept + 1);  // `held` is kept by who holds it
    EXPECT_NE(get(at(0, 1), 1), held);
    EXPECT_EQ(get(at(1, 1), 1), again);
    EXPECT_EQ(fake.attached, kept + 1);
}

TEST_F(RegistrationsTest, AFailureIsNotKept) {
    fake.script.fail_attach = Error{ErrorCode::io_error, "scripted", {}, {}};
    EXPECT_FALSE(registrations.get(fake, at(0, 1), {.identity = 1}));
    EXPECT_EQ(fake.attached, 0);
}

TEST_F(RegistrationsTest, SeveralThreadsFindAndForget) {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number)
        threads.emplace_back([&, number] {
            for (Bytes i = 0; i < 2000; ++i) {
                const Buffer buffer = at((i * 7 + static_cast<Bytes>(number)) % 1500, 1);
                EXPECT_EQ(get(buffer, 1 + i / 500)->buffer().address(), buffer.address());
                if (i % 97 == 0) registrations.forget(at(i % 1000, 50));
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(fake.attached, static_cast<int>(Registrations::max_kept));
    registrations.clear();
    EXPECT_EQ(fake.attached, 0);
}

}  // namespace
}  // namespace sidestep
