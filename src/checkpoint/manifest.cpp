#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "base/xxh3.hpp"
#include "checkpoint/json_events.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr const char* format_name = "sidestep-manifest";
constexpr std::uint64_t format_version = 1;
constexpr const char* hash_name = "xxh3-64";

class ManifestReader : public JsonReader {
public:
    Manifest manifest;

    bool key(std::string& name) override {
        if (skipped_ == 0) member_ = std::move(name);
        return true;
    }

    bool begin(bool object) override {
        if (skipped_ > 0) return ++skipped_, true;
        if (depth() == 0) return object || fail("holds a list, where an object is expected");
        if (depth() == 1 && member_ == "files" && !object) return in_files_ = true;
        if (depth() == 2 && in_files_) {
            manifest.files.emplace_back();
            had_size_ = false;
            return object || fail_file("is not an object");
        }
        if (depth() == 3 && member_ == "blocks" && !object) return true;
        if (depth() == 4) return fail_file("has a checksum that is not a string");
        return skipped_ = 1, true;
    }

    bool end() override {
        if (skipped_ > 0) return --skipped_, true;
        if (depth() == 1) in_files_ = false;
        return depth() != 2 || end_of_file();
    }

    bool scalar(JsonScalar& value) override {
        if (skipped_ > 0) return true;
        if (depth() == 0) return fail("holds no object");
        if (depth() == 1) return mark(value);
        if (depth() == 2) return fail("files holds something else than objects");
        if (depth() == 4) return checksum(value);
        if (member_ == "name" && value.kind == JsonScalar::Kind::text)
            manifest.files.back().name = std::move(value.text);
        if (member_ == "size") {
            if (value.kind != JsonScalar::Kind::natural) return fail_file("has an invalid size");
            manifest.files.back().size = value.natural;
            had_size_ = true;
        }
        return true;
    }

    // What a whole manifest has.
    bool is_marked() const { return marks_ == 15; }

private:
    bool mark(const JsonScalar& value) {
        const auto natural = [&](std::uint64_t wanted) {
            return value.kind == JsonScalar::Kind::natural && value.natural == wanted;
        };
        const auto text = [&](const char* wanted) {
            return value.kind == JsonScalar::Kind::text && value.text == wanted;
        };
        if (member_ == "files") return fail("files is not a list");
        if (member_ == "format") return note(1, text(format_name), "this is not a manifest");
        if (member_ == "version")
            return note(2, natural(format_version), "another version than 1, which is read here");
        if (member_ == "block")
            return note(4, natural(Manifest::usual_block), "blocks of another size than 1 MiB");
        if (member_ == "hash") return note(8, text(hash_name), "another hash than xxh3-64");
        return true;
    }

    bool note(unsigned mark, bool good, const char* wrong) {
        marks_ |= mark;
        return good || fail(wrong);
    }

    bool checksum(const JsonScalar& value) {
        std::uint64_t hash = 0;
        const char* begin = value.text.data();
        const char* end = begin + value.text.size();
        const auto read = std::from_chars(begin, end, hash, 16);
        if (value.kind != JsonScalar::Kind::text || value.text.size() != 16 || read.ec != std::errc() ||
            read.ptr != end) {
            return fail_file("has a checksum that is no 16 hexadecimal digits");
        }
        manifest.files.back().blocks.push_back(hash);
        return true;
    }

    bool end_of_file() {
        const Manifest::File& file = manifest.files.back();
        if (file.name.empty() || !had_size_)
            return fail_file(file.name.empty() ? "has no name" : "has no size");
        if (file.blocks.size() != block_count(file.size)) {
            return fail_file(fmt::format("has {} checksums, where its {} bytes make {} blocks",
                                         file.blocks.size(), file.size, block_count(file.size)));
        }
        return true;
    }

    bool fail_file(const std::string& message) {
        return fail(fmt::format("file {} {}", shown(manifest.files.back().name), message));
    }

    std::string member_;
    int skipped_ = 0;
    unsigned marks_ = 0;
    bool in_files_ = false;
    bool had_size_ = false;
};

Error mismatch(std::string message, const std::string& file) {
    return Error{ErrorCode::mismatch, std::move(message), file,
                 "copy or download the file again, or write a new manifest"};
}

}  // namespace

std::uint64_t hash_block(const void* data, Bytes size) {
    return base::xxh3(data, size);
}

const Manifest::File* Manifest::find(std::string_view name) const {
    const auto found =
        std::find_if(files.begin(), files.end(), [name](const File& file) { return file.name == name; });
    return found == files.end() ? nullptr : &*found;
}

Result<void> check_listable(std::string_view path) {
    const std::string name = base_name(path);
    if (!first_bad_utf8(name)) return {};
    return Error{ErrorCode::unsupported,
                 fmt::format("a manifest cannot have the file {}, whose name is no UTF-8", shown(name)),
                 std::string(path), "give it another name, or do without a manifest"};
}

std::string to_json(const Manifest& manifest) {
    std::string text = fmt::format(
        "{{\n \"format\": \"{}\",\n \"version\": {},\n \"hash\": \"{}\",\n \"block\": {},\n \"files\": [",
        format_name, format_version, hash_name, Manifest::usual_block);
    const char* separator = "\n";
    for (const Manifest::File& file : manifest.files) {
        text += fmt::format("{}  {{\"name\": {}, \"size\": {}, \"blocks\": [", separator,
                            json_text(file.name), file.size);
        separator = ",\n";
        for (std::size_t i = 0; i < file.blocks.size(); ++i)
            text +=
                fmt::format("{}{}\"{:016x}\"", i == 0 ? "" : ",", i % 5 == 0 ? "\n   " : " ", file.blocks[i]);
        text += "]}";
    }
    return text + "\n ]\n}\n";
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& file) {
    ManifestReader reader;
    SIDESTEP_CHECK(read_json(text, reader, "the manifest", file));
    if (!reader.is_marked()) {
        return Error{ErrorCode::invalid_argument,
                     "the manifest: format, version, hash or block is missing: this is not a manifest",
                     file,
                     {}};
    }
    const Manifest& manifest = reader.manifest;
    const NameTable::NameOf name = [&](std::size_t i) { return std::string_view(manifest.files[i].name); };
    if (const auto twice = NameTable(manifest.files.size(), name).twice(name)) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the manifest names file {} twice", shown(name(twice->first))),
                     file,
                     {}};
    }
    return std::move(reader.manifest);
}

Result<ManifestCheck> ManifestCheck::create(Manifest manifest, std::vector<CheckpointFile> files,
                                            std::vector<TensorInfo> tensors,
                                            const std::vector<std::size_t>& compared) {
    ManifestCheck check;
    check.of_file_.resize(files.size());
    for (const std::size_t number : compared) {
        const CheckpointFile& file = files[number];
        const Manifest::File* listed = manifest.find(base_name(file.path));
        if (listed == nullptr)
            return mismatch(fmt::format("the manifest has no checksums of {}", base_name(file.path)),
                            file.path);
        if (listed->size != file.size) {
            return mismatch(
                fmt::format("{} has {} bytes, and {} by the manifest", file.path, file.size, listed->size),
                file.path);
        }
        check.of_file_[number] = static_cast<std::size_t>(listed - manifest.files.data());
    }
    check.manifest_ = std::move(manifest);
    check.files_ = std::move(files);
    check.tensors_ = std::move(tensors);
    std::erase_if(check.tensors_, [](const TensorInfo& tensor) { return tensor.bytes == 0; });
    return check;
}

Result<bool> ManifestCheck::compare(std::size_t file, Bytes offset, const void* data, Bytes size) const {
    const CheckpointFile& whole = files_[file];
    if (offset % Manifest::usual_block != 0 || offset >= whole.size) return false;
    if (size != std::min(Manifest::usual_block, whole.size - offset)) return false;
    const std::size_t block = offset / Manifest::usual_block;
    if (manifest_.files[of_file_[file]].blocks[block] == hash_block(data, size)) return true;
    return mismatch(
        fmt::format("block {} of {} (bytes {} to {}) differs from the manifest; in it: {}", block, whole.path,
                    offset, offset + size, names_between(tensors_, whole, file, offset, offset + size)),
        whole.path);
}

std::string names_between(const std::vector<TensorInfo>& tensors, const CheckpointFile& file,
                          std::size_t file_number, Bytes begin, Bytes end) {
    constexpr std::size_t max = 3;
    std::string words = begin < file.data_begin ? "the header" : "";
    auto tensor = std::partition_point(tensors.begin(), tensors.end(), [&](const TensorInfo& one) {
        return one.file != file_number ? one.file < file_number : one.offset + one.bytes <= begin;
    });
    std::size_t named = 0;
    std::size_t more = 0;
    for (; tensor != tensors.end() && tensor->file == file_number && tensor->offset < end; ++tensor) {
        if (named == max) {
            ++more;
            continue;
        }
        words += fmt::format("{}{}{}", words.empty() ? "" : ", ", named == 0 ? "tensor " : "",
                             shown(tensor->name));
        ++named;
    }
    if (more > 0) words += fmt::format(" and {} more", more);
    return words.empty() ? "no tensor" : words;
}

}  // namespace sidestep::checkpoint
