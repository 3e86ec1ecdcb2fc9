// Which files a node lets others reach, and that nothing else is reached or even told of.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include "wire/allowance.hpp"

namespace sidestep::wire::allowed_files {
namespace {

using namespace std::string_literals;

// A folder `in` that is allowed, and `out` that is not.
class WireAllowedFiles : public testing::Test {
protected:
    WireAllowedFiles() {
        std::string name = "/tmp/sidestep-allow-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        top = std::filesystem::canonical(name);
        in = top + "/in";
        out = top + "/out";
        for (const std::string& folder : {in, in + "/deep", out, out + "/deep", top + "/inner"})
            EXPECT_TRUE(std::filesystem::create_directory(folder));
        for (const std::string& file : {in + "/file", in + "/deep/file", out + "/file", out + "/deep/file",
                                        top + "/inner/file", top + "/one"})
            put(file);
        link(in + "/to-file", "deep/file");
        link(in + "/to-deep", "deep");
        link(in + "/to-out", out);
        link(in + "/to-out-file", "../out/file");
        link(in + "/to-missing", out + "/missing");
        link(in + "/to-missing-folder", out + "/missing/folder");
        link(in + "/to-in-missing", "missing");
        link(in + "/loop", "loop");
        link(top + "/link", in);
    }
    ~WireAllowedFiles() override { std::filesystem::remove_all(top); }

    // Nothing allowed where the list is wrong.
    static Allowances allowing(const std::string& list) {
        auto allowances = Allowances::parse(list);
        EXPECT_TRUE(allowances.ok()) << allowances.error().to_string();
        return allowances.ok() ? *allowances : Allowances();
    }
    static void put(const std::string& file) { std::ofstream(file) << "x"; }
    static void link(const std::string& name, const std::string& to) {
        ASSERT_EQ(::symlink(to.c_str(), name.c_str()), 0) << name;
    }

    // The canonical path without `top`, or the name of the error's code.
    std::string answer(const Allowances& allowances, const std::string& path,
                       Permission permission = Permission::read) const {
        const auto found = allowances.file(path, permission);
        if (!found.ok()) return to_string(found.error().code);
        EXPECT_TRUE(found->starts_with(top + "/")) << *found;
        return found->substr(std::min(top.size(), found->size()));
    }

    // Paths below `top`, and what is answered.
    using Table = std::vector<std::pair<std::string, std::string>>;
    void expect(const Allowances& allowances, const Table& table, Permission permission) const {
        for (const auto& [path, expected] : table)
            EXPECT_EQ(answer(allowances, top + path, permission), expected)
                << path << (permission == Permission::read ? " for reading" : " for writing");
    }

    std::string top, in, out;
};

const std::string denied = to_string(ErrorCode::permission_denied);
const std::string missing = to_string(ErrorCode::not_found);
const std::string senseless = to_string(ErrorCode::invalid_argument);

const std::vector<std::pair<std::string, std::string>> below_a_folder = {
    {"/in/file", "/in/file"},
    {"/in/deep/file", "/in/deep/file"},
    {"/out/file", denied},
    {"/file", denied},
    {"/one", denied},
    {"", denied},
    // A name that only begins like the folder's.
    {"/inner/file", denied},
    {"/inner", denied},
    {"/i", denied},
    // The same path in other letters.
    {"//in//file", "/in/file"},
    {"/./in/./deep/.//file", "/in/deep/file"},
    {"/in/deep/../file", "/in/file"},
    {"/in/deep/../../in/file", "/in/file"},
    {"/in/../in/file", "/in/file"},
    {"/IN/file", denied},
    // Out by steps back.
    {"/in/../out/file", denied},
    {"/in/../one", denied},
    {"/in/deep/../../out/file", denied},
    {"/in/.//..//out/file", denied},
    {"/in/../inner/file", denied},
    {"/in/../../../../../../../../../etc/passwd", denied},
    {"/in/file/../file", denied},
    {"/out/../in/file", denied},
    {"/../../../in/file", denied},
    // Links within, and links that lead out.
    {"/in/to-file", "/in/deep/file"},
    {"/in/to-deep/file", "/in/deep/file"},
    {"/in/to-deep/../file", "/in/file"},
    {"/in/to-out/file", denied},
    {"/in/to-out", denied},
    {"/in/to-out/deep/file", denied},
    {"/in/to-out/../in/file", denied},
    {"/in/to-out-file", denied},
    {"/in/to-missing", denied},
    {"/in/to-in-missing", denied},
    {"/in/loop", denied},
    {"/in/loop/file", denied},
    {"/link/file", denied},  // no entry is written so
    {"/link/../in/file", denied},
    // What is not there, but would be allowed.
    {"/in/none", missing},
    {"/in/none/none", missing},
    {"/in/deep/none", missing},
    {"/in/to-deep/none", missing},
    {"/in/file/none", missing},
    {"/in/none/../file", denied},
    // What is there and is no file.
    {"/in", senseless},
    {"/in/deep", senseless},
    {"/in/to-deep", senseless},
    {"/in/deep/", senseless},
    {"/in/file/", senseless},
    {"/in/file/.", senseless},
    {"/in/..", senseless},
    {"/in/none/.", senseless},
    {"/in/file\0"s, senseless},
    {"/in/\0/../file"s, senseless},
    {"/in/" + std::string(256, 'a'), senseless},
    {"/in/" + std::string(255, 'a'), missing},
};

TEST_F(WireAllowedFiles, AreThoseBelowAFolderAndNoOthers) {
    const Allowances allowances = allowing("file:" + in);
    expect(allowances, below_a_folder, Permission::read);
    for (const auto& [path, expected] : below_a_folder)
        EXPECT_FALSE(allowances.file(top + path, Permission::write).ok()) << path << " may not be written";
}

TEST_F(WireAllowedFiles, AreNotNamedByRelativeOrOverlongPaths) {
    const Allowances allowances = allowing("file:" + in + "=rw,file:/=rw");
    std::string deep = in;
    while (deep.size() < PATH_MAX - 1) deep += "/a";
    std::string dots = in;
    while (dots.size() + 7 < PATH_MAX) dots += "/.";
    for (const std::string& path : {""s, "file"s, "in/file"s, "./file"s, "../in/file"s, "."s, "~/file"s,
                                    "\0"s, deep + "/a", dots + "/./././file", std::string(1'000'000, '/')}) {
        for (const Permission permission : {Permission::read, Permission::write}) {
            const auto found = allowances.file(path, permission);
            ASSERT_FALSE(found.ok()) << path;
            EXPECT_EQ(found.error().code, ErrorCode::invalid_argument) << found.error().to_string();
            EXPECT_LT(found.error().message.size(), 400u);
            EXPECT_FALSE(found.error().hint.empty());
        }
    }
    EXPECT_EQ(answer(allowances, dots + "/file"), "/in/file") << "just short enough";
    EXPECT_EQ(answer(allowances, deep.substr(0, PATH_MAX - 1)), missing);
}

TEST_F(WireAllowedFiles, MayBeWrittenWhereTheEntrySaysSo) {
    const WireAllowedFiles::Table table = {
        {"/in/file", "/in/file"},
        {"/in/to-file", "/in/deep/file"},
        {"/in/none", "/in/none"},
        {"/in/deep/none", "/in/deep/none"},
        {"/in/to-deep/none", "/in/deep/none"},
        {"/in/deep/..//none", "/in/none"},
        {"/in/...", "/in/..."},
        {"/in/.hidden", "/in/.hidden"},
        {"/in/none/none", missing},
        {"/in/none/none/none", missing},
        {"/in/file/none", missing},
        {"/in/to-out/none", denied},
        {"/in/to-out/file", denied},
        {"/in/to-out-file", denied},
        // What would make a file where a link leads.
        {"/in/to-missing", denied},
        {"/in/to-missing/none", denied},
        {"/in/to-missing-folder/none", denied},
        {"/in/to-in-missing", denied},
        {"/in/loop", denied},
        {"/in/loop/none", denied},
        {"/in/../none", denied},
        {"/in/../out/none", denied},
        {"/innone", denied},
        {"/in-none", denied},
        {"/in", senseless},
        {"/in/deep", senseless},
        {"/in/", senseless},
        {"/in/none/", senseless},
        {"/in/none/.", senseless},
        {"/in/none/..", senseless},
        {"/in/.", senseless},
        {"/in/..", senseless},
        {"/in/deep/../", senseless},
    };
    expect(allowing("file:" + in + "=rw"), table, Permission::write);
    for (const char* made : {"/in/none", "/in/missing", "/out/missing"})
        EXPECT_FALSE(std::filesystem::exists(top + made)) << "asking makes nothing";
}

TEST_F(WireAllowedFiles, TheirRightsAreThoseOfAnyEntry) {
    const Allowances allowances =
        allowing("file:" + in + ",file:" + in + "/deep=rw,file:" + top + "/one=rw,file:" + out);
    expect(allowances,
           {{"/in/file", "/in/file"},
            {"/in/deep/file", "/in/deep/file"},
            {"/one", "/one"},
            {"/out/file", "/out/file"},
            {"/in/to-out/file", "/out/file"},
            {"/in/../out/file", "/out/file"}},
           Permission::read);
    expect(allowances,
           {{"/in/file", denied},
            {"/in/none", denied},
            {"/in/deep/file", "/in/deep/file"},
            {"/in/to-file", "/in/deep/file"},
            {"/in/deep/none", "/in/deep/none"},
            {"/one", "/one"},
            {"/in/to-out/file", denied},
            {"/in/to-out/none", denied},
            {"/out/none", denied}},
           Permission::write);
}

TEST_F(WireAllowedFiles, ThatAreNamedOneByOne) {
    const Allowances allowances = allowing("file:" + top + "/one,file:" + in + "/to-file=rw");
    const WireAllowedFiles::Table both = {{"/one/", senseless},
                                          {"/one2", denied},
                                          {"/in/file", denied},
                                          {"/in/none", denied},
                                          {"/", senseless}};
    expect(allowances, both, Permission::read);
    expect(allowances, both, Permission::write);
    expect(allowances,
           {{"/one", "/one"},
            {"/in/to-file", "/in/deep/file"},
            {"/in/deep/file", "/in/deep/file"},
            {"/one/x", denied},
            {"/in/to-file/x", denied},
            {"/one/../in/file", denied}},
           Permission::read);
    expect(allowances, {{"/one", denied}, {"/in/to-file", "/in/deep/file"}, {"/in/deep/none", denied}},
           Permission::write);
    std::filesystem::remove(in + "/deep/file");
    expect(allowances, {{"/in/deep/file", missing}}, Permission::read);
    expect(allowances, {{"/in/deep/file", "/in/deep/file"}}, Permission::write);
    // What an entry named is no longer the same.
    std::filesystem::remove(top + "/one");
    link(top + "/one", out + "/file");
    expect(allowances, {{"/one", denied}}, Permission::read);
    std::filesystem::remove(top + "/one");
    std::filesystem::create_directory(top + "/one");
    put(top + "/one/x");
    expect(allowances, {{"/one", senseless}, {"/one/x", denied}, {"/one/../in/file", denied}},
           Permission::read);
}

TEST_F(WireAllowedFiles, AFolderThatIsReplacedByALinkLeadsNowhere) {
    const Allowances allowances = allowing("file:" + in + "=rw");
    std::filesystem::rename(in, top + "/moved");
    expect(allowances, {{"/in/file", missing}}, Permission::read);
    link(in, out);
    const WireAllowedFiles::Table table = {
        {"/in/file", denied}, {"/in/deep/file", denied}, {"/in/none", denied}};
    expect(allowances, table, Permission::read);
    expect(allowances, table, Permission::write);
}

TEST_F(WireAllowedFiles, AFolderMayBeNamedByALink) {
    for (const std::string& entry : {top + "/link", top + "/./link/", top + "//link"}) {
        const Allowances allowances = allowing("file:" + entry);
        EXPECT_EQ(allowances.lines(), std::vector<std::string>{"file:" + in}) << entry;
        expect(allowances,
               {{"/link/file", "/in/file"},
                {"/in/file", "/in/file"},
                {"/link/../in/file", "/in/file"},
                {"/link/../link/file", "/in/file"},
                {"/link/../out/file", denied},
                {"/link2/file", denied},
                {"/link/none", missing},
                {"/link", senseless}},
               Permission::read);
    }
    const Allowances back = allowing("file:" + out + "/../in");
    expect(back, {{"/in/file", "/in/file"}, {"/out/../in/file", denied}, {"/out/file", denied}},
           Permission::read);
}

TEST_F(WireAllowedFiles, TheWholeMachineMayBeAllowed) {
    const Allowances allowances = allowing("file:/");
    expect(allowances,
           {{"/in/file", "/in/file"},
            {"/out/file", "/out/file"},
            {"/in/to-out/file", "/out/file"},
            {"/link/../out/file", "/out/file"},
            {"/none", missing},
            {"/in/to-missing", denied}},
           Permission::read);
    expect(allowances, {{"/in/file", denied}, {"/none", denied}}, Permission::write);
    EXPECT_EQ(allowances.file("/", Permission::read).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(*allowances.file("/.." + in + "/file", Permission::read), in + "/file");
    EXPECT_EQ(*allowing("file:/=rw").file("/none-of-this-name", Permission::write), "/none-of-this-name");
}

TEST_F(WireAllowedFiles, OnlyFilesAndBlockDevicesAreReached) {
    ASSERT_EQ(::mkfifo((in + "/pipe").c_str(), 0600), 0);
    ASSERT_EQ(::mknod((in + "/socket").c_str(), S_IFSOCK | 0600, 0), 0);
    link(in + "/to-pipe", "pipe");
    const Allowances allowances = allowing("file:" + in + "=rw,file:/dev=rw");
    for (const std::string& path :
         {in + "/pipe", in + "/to-pipe", in + "/socket", in + "/deep", "/dev/null"s, "/dev/zero"s}) {
        for (const Permission permission : {Permission::read, Permission::write}) {
            const auto found = allowances.file(path, permission);
            ASSERT_FALSE(found.ok()) << path;
            EXPECT_EQ(found.error().code, ErrorCode::invalid_argument) << found.error().to_string();
            EXPECT_NE(found.error().message.find(path), std::string::npos) << found.error().to_string();
            EXPECT_FALSE(found.error().hint.empty());
        }
        EXPECT_EQ(Allowances::parse("file:" + path).ok(), path == in + "/deep") << path;
    }
    if (::mknod((in + "/disk").c_str(), S_IFBLK | 0600, 7 << 8) != 0)
        GTEST_SKIP() << "this process may make no block device";
    EXPECT_EQ(answer(allowances, in + "/disk"), "/in/disk");
    EXPECT_EQ(answer(allowances, in + "/disk", Permission::write), "/in/disk");
    EXPECT_EQ(allowing("file:" + in + "/disk").lines().size(), 1u);
}

// Of each two paths the first leads, or would lead, to what is there outside, the second to what is not.
const std::vector<std::pair<std::string, std::string>> there_and_absent = {
    {"/out/file", "/out/none"},
    {"/out/pipe", "/out/none"},
    {"/out/deep", "/out/none"},
    {"/out/deep/file", "/out/none/file"},
    {"/out/file/x", "/out/none/x"},
    {"/in/../out/file", "/in/../out/none"},
    {"/in/../secret/x", "/in/../absent/x"},
    {"/secret/../in/file", "/absent/../in/file"},
    {"/secret/../in/none", "/absent/../in/none"},
    {"/in/../secret/../in/file", "/in/../absent/../in/file"},
    {"/in/../in/../secret/../in/file", "/in/../in/../absent/../in/file"},
    {"/in/to-secret", "/in/to-absent"},
    {"/in/to-secret/x", "/in/to-absent/x"},
    {"/in/to-secret/x/y", "/in/to-absent/x/y"},
    {"/in/to-secret/../in/file", "/in/to-absent/../in/file"},
    {"/in/to-out-file", "/in/to-out-none"},
    {"/in/to-out-file/x", "/in/to-out-none/x"},
    {"/in/to-out/file", "/in/to-out/none"},
    {"/in/to-out/pipe", "/in/to-out/none"},
    {"/in/to-out/deep/file", "/in/to-out/none/file"},
    {"/in/to-out/deep/../deep/file", "/in/to-out/none/../deep/file"},
    {"/in/to-out/file/x", "/in/to-out/none/x"},
    {"/link/file", "/no-link/file"},
    {"/link/../in/file", "/no-link/../in/file"},
};

// Path below `top` -> the canonical folder, or the code of the error.
TEST_F(WireAllowedFiles, NamesAreToldOfFoldersThatAreAllowed) {
    const Allowances allowances = allowing("file:" + in + ",file:" + top + "/one");
    const std::pair<const char*, const char*> table[] = {
        {"/in", "/in"},
        {"/in/", "/in"},
        {"/in/deep//", "/in/deep"},
        {"/in/to-deep", "/in/deep"},
        {"/in/deep/../deep", "/in/deep"},
        {"/in/file", "invalid_argument"},
        {"/one", "invalid_argument"},
        {"/in/none", "not_found"},
        {"/out", "permission_denied"},
        {"/in/to-out", "permission_denied"},
        {"/in/../out", "permission_denied"},
        {"/in/to-missing-folder", "permission_denied"},
        {"", "permission_denied"},
    };
    for (const auto& [path, expected] : table) {
        const auto found = allowances.folder(top + path);
        EXPECT_EQ(found ? found->substr(top.size()) : to_string(found.error().code), expected) << path;
    }
    EXPECT_EQ(allowances.folder("in").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(allowances.folder("/").error().code, ErrorCode::permission_denied);
    EXPECT_TRUE(allowing("file:/").folder("/").ok());
}

TEST_F(WireAllowedFiles, NobodyLearnsWhatIsThereOutside) {
    std::filesystem::create_directory(top + "/secret");
    link(in + "/to-secret", top + "/secret");
    link(in + "/to-absent", top + "/absent");
    link(in + "/to-out-none", out + "/none");
    ASSERT_EQ(::mkfifo((out + "/pipe").c_str(), 0600), 0);
    for (const std::string& list : {"file:" + in, "file:" + in + "=rw"})
        for (const Permission permission : {Permission::read, Permission::write})
            for (const auto& [there, absent] : there_and_absent) {
                const auto first = allowing(list).file(top + there, permission);
                const auto second = allowing(list).file(top + absent, permission);
                ASSERT_FALSE(first.ok()) << there;
                ASSERT_FALSE(second.ok()) << absent;
                EXPECT_EQ(first.error().code, ErrorCode::permission_denied) << first.error().to_string();
                std::string said = first.error().to_string();
                const std::size_t at = said.find(top + there);
                ASSERT_NE(at, std::string::npos) << said;
                said.replace(at, (top + there).size(), top + absent);
                EXPECT_EQ(said, second.error().to_string());
            }
    // The same of what may be read and not be written.
    const Allowances allowances = allowing("file:" + in);
    for (const char* name : {"/in/file", "/in/none", "/in/deep", "/in/none/none"})
        EXPECT_EQ(answer(allowances, top + name, Permission::write), denied) << name;
}

TEST_F(WireAllowedFiles, MessagesStayOnOneLine) {
    const Allowances allowances = allowing("file:" + in + "=rw");
    for (const std::string& path : {"/x\ny\x1b[2J\r\x7f"s, in + "/a\nb/c"}) {
        const auto found = allowances.file(path, Permission::write);
        ASSERT_FALSE(found.ok());
        for (const char byte : found.error().to_string()) ASSERT_GE(static_cast<unsigned char>(byte), 0x20);
        EXPECT_EQ(found.error().to_string().find('\x7f'), std::string::npos);
    }
}

TEST_F(WireAllowedFiles, WhatIsPrintedParsesTheSame) {
    const std::string odd = in + "/a,b=rw%2C\n";
    std::filesystem::create_directory(odd);
    put(odd + "/file");
    const std::string list = "gpu:0,gpu:1=1536MiB,gpu:2=1000,gpu:*=2048GiB,host=1025KiB,file:" + in +
                             "/a%2cb%3Drw%252C%0a=rw,file:" + out + "/,shared:kv,shared:*";
    const Allowances allowances = allowing(list);
    const std::vector<std::string> expected = {
        "gpu:0",       "gpu:1=1536MiB", "gpu:2=1000",
        "gpu:*=2TiB",  "host=1025KiB",  "file:" + in + "/a%2Cb%3Drw%252C%0A=rw",
        "file:" + out, "shared:kv",     "shared:*"};
    EXPECT_EQ(allowances.lines(), expected);
    std::string again;
    for (const std::string& line : allowances.lines()) again += (again.empty() ? "" : ",") + line;
    EXPECT_EQ(allowing(again).lines(), expected);
    EXPECT_EQ(*allowances.file(odd + "/file", Permission::write), odd + "/file");
    EXPECT_EQ(allowances.memory(Place::gpu(1), 1536_MiB + 1, 0).error().code, ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace sidestep::wire::allowed_files
