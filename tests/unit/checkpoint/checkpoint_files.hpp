// Files of checkpoints, made byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace sidestep {

// A folder of a test's own.
class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-checkpoint-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path_ = name;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

    std::string write(const std::string& name, std::string_view content) const {
        std::ofstream file(*this / name, std::ios::binary);
        file.write(content.data(), static_cast<std::streamsize>(content.size()));
        EXPECT_TRUE(file.flush());
        return *this / name;
    }

private:
    std::string path_;
};

// `bytes` little endian bytes of a number.
inline std::string number_bytes(std::uint64_t number, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i) & 0xFF);
    return text;
}

// A safetensors file: the length, the header, `data` bytes of data.
inline std::string safetensors_file(std::string_view header, std::size_t data) {
    std::string text = number_bytes(header.size(), 8);
    text += header;
    text.append(data, 'x');
    return text;
}

// {"NAME":{"dtype":"F32","shape":[ELEMENTS],"data_offsets":[BEGIN, ...]}} without the outer braces.
inline std::string f32_entry(const std::string& name, std::uint64_t begin, std::uint64_t elements) {
    std::string text = "\"";
    text += name;
    text += R"(":{"dtype":"F32","shape":[)";
    text += std::to_string(elements);
    text += R"(],"data_offsets":[)";
    text += std::to_string(begin);
    text += ',';
    text += std::to_string(begin + 4 * elements);
    text += "]}";
    return text;
}

// One file with F32 tensors of 4 elements each.
inline std::string small_file(const std::vector<std::string>& names) {
    std::string header;
    for (std::size_t i = 0; i < names.size(); ++i) {
        header += i == 0 ? "{" : ",";
        header += f32_entry(names[i], 16 * i, 4);
    }
    header += names.empty() ? "{}" : "}";
    return safetensors_file(header, 16 * names.size());
}

}  // namespace sidestep
