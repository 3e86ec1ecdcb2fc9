// Files and pieces of files for the tests of NCCL's topology format.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <sidestep/nccl_xml.hpp>

namespace sidestep::testing {

inline std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// One of tests/recorded/nccl.
inline std::string recorded(const std::string& name) {
    return text_of(SIDESTEP_SOURCE_DIR "/tests/recorded/nccl/" + name);
}

inline std::vector<std::filesystem::path> recorded_files() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(SIDESTEP_SOURCE_DIR "/tests/recorded/nccl")) {
        if (entry.path().extension() == ".xml") files.push_back(entry.path());
    }
    return files;
}

// A machine with one cpu and what is put into it.
inline std::string machine(const std::string& inside, const char* version = "1") {
    return fmt::format("<system version=\"{}\">\n<cpu numaid=\"0\" arch=\"arm64\">\n{}\n</cpu>\n</system>\n",
                       version, inside);
}

// A GPU at bus `bus` with what is put into its <gpu>.
inline std::string gpu(int bus, int dev, const std::string& inside = "", const char* more = "") {
    return fmt::format(
        "<pci busid=\"0000:{:02x}:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "
        "link_width=\"16\"{}><gpu dev=\"{}\" sm=\"90\" rank=\"{}\" gdr=\"1\">{}</gpu></pci>\n",
        bus, more, dev, dev, inside);
}

inline Topology read(const std::string& text, const std::string& where = "f.xml", std::string_view as = "") {
    auto topology = read_nccl_xml(text, where, as);
    if (topology.ok()) return std::move(*topology);
    ADD_FAILURE() << topology.error().to_string() << "\n" << text;
    return Topology::create({}).value();
}

// "NV18": between two devices by name.
inline std::string between(const Topology& topology, const std::string& a, const std::string& b) {
    const auto first = topology.find(a);
    const auto second = topology.find(b);
    if (!first || !second) return "no such device";
    return to_string(topology.pair_class(*first, *second));
}

inline bool noted(const Topology& topology, const std::string& part) {
    for (const std::string& note : topology.notes()) {
        if (note.find(part) != std::string::npos) return true;
    }
    return false;
}

inline std::string property(const Device& device, const std::string& name) {
    const auto found = device.properties.find(name);
    return found == device.properties.end() ? "(none)" : found->second;
}

}  // namespace sidestep::testing
