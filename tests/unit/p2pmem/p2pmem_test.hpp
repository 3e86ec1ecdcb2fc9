// What the tests of the p2pmem backend share: a made-up /sys whose `allocate` is an ordinary file.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "backends/p2pmem/p2pmem_backend.hpp"
#include "tests/contents.hpp"
#include "tests/started_piece.hpp"

namespace sidestep::backends::p2pmem {

using test::get;
using test::put;
using test::text_of;

class P2pmemTest : public testing::Test {
protected:
    P2pmemTest() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-p2pmem-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    ~P2pmemTest() override {
        backend_.reset();
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    std::string operator/(const std::string& name) const { return folder_ + "/" + name; }

    static bool says(const std::string& text, const std::string& part) {
        return text.find(part) != std::string::npos;
    }

    std::string device_folder(const std::string& bus_id) const {
        return folder_ + "/tree/sys/bus/pci/devices/" + bus_id + "/p2pmem";
    }
    // A device with `size` bytes of which `available` are free.
    void add_device(const std::string& bus_id, Bytes size, Bytes available) {
        const std::string device = device_folder(bus_id);
        std::filesystem::create_directories(device);
        put(device + "/size", std::to_string(size) + "\n");
        put(device + "/available", std::to_string(available) + "\n");
        put(device + "/published", "1\n");
        put(device + "/allocate", "");
        std::filesystem::resize_file(device + "/allocate", size);
    }

    static Topology topology(Properties properties = {}) {
        Topology::Parts parts;
        parts.name = "one-cpu";
        parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
        parts.properties = std::move(properties);
        return *Topology::create(parts);
    }
    P2pmemOptions options() const { return {.root = folder_ + "/tree", .any_file = true}; }
    backend::Support open(std::unique_ptr<backend::Backend> made, Properties properties = {}) {
        backend_ = std::move(made);
        return backend_->probe(topology(std::move(properties)));
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer, backend::Access access,
                                                          backend::AttachOptions options = {}) {
        options.access = access;
        return backend_->attach(buffer, options);
    }
    // By the engine with that number.
    Result<void> move(backend::Registration& from, Bytes from_at, backend::Registration& to, Bytes to_at,
                      Bytes size, std::size_t engine) {
        return test::StartedPiece(*backend_, {&from, from_at, &to, to_at, size, engine, nullptr}).wait();
    }

    std::string folder_;
    std::unique_ptr<backend::Backend> backend_;
};

}  // namespace sidestep::backends::p2pmem
