// Records of machines: what they hold, what they leave out, and that they replay.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <sidestep/doctor.hpp>
#include <sidestep/record.hpp>

#include "diagnose/driver_records.hpp"
#include "diagnose/record_masks.hpp"
#include "tests/unit/diagnose/fake_machine.hpp"
#include "topology/nvml_record_reader.hpp"

namespace sidestep::diagnose {
namespace {

class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-record-XXXXXX").string();
        path_ = ::mkdtemp(name.data());
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

TEST(RecordMasks, LeaveOutWhatNamesAMachine) {
    EXPECT_EQ(masked("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=1234-ab iommu=pt quiet\n", "myhost"),
              "iommu=pt \n");
    const std::string gids = "/sys/class/infiniband/mlx5_0/ports/1/gids/3";
    EXPECT_EQ(masked(gids, "0000:0000:0000:0000:0000:ffff:c0a8:0105\n", ""),
              "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
    EXPECT_EQ(masked(gids, "fe80:0000:0000:0000:0a1b:2c3d:4e5f:6071\n", ""),
              "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    EXPECT_EQ(masked(gids, "0000:0000:0000:0000:0000:0000:0000:0000\n", ""),
              "0000:0000:0000:0000:0000:0000:0000:0000\n")
        << "an unused entry stays one";
    EXPECT_EQ(masked("/proc/driver/nvidia/gpus/0/information", "Model: H200\nGPU UUID: GPU-12\n", ""),
              "Model: H200\n");
    EXPECT_EQ(masked("/proc/version", "Linux version 6.1 (me@build.example) (gcc 12) #1", ""),
              "Linux version 6.1  (gcc 12) #1");
    EXPECT_EQ(masked("/proc/cpuinfo", "processor: 0\nflags: a\n\nprocessor: 1\n", ""),
              "processor: 0\nflags: a\n\n");
    EXPECT_EQ(
        masked("/proc/net/route",
               "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0105A8C0\t0003\neth0\t0005A8C0\t00000000"
               "\t1\n"
               "eth1\t0005A8C0\t0105A8C0\t1\n",
               ""),
        "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0001000A\t0003\neth0\t0002000A\t00000000\t1\n"
        "eth1\t0002000A\t0001000A\t1\n");
    EXPECT_EQ(masked("/etc/any", "this is myhost speaking", "myhost"), "this is host speaking");
}

TEST(RecordMasks, KeepOfTheEnvironmentWhatChecksRead) {
    const char* const given[] = {"HOME=/home/me",
                                 "NCCL_P2P_LEVEL=NVL",
                                 "NCCL_P2P_LEVEL_OF=me",
                                 "NCCL_DEBUG",
                                 "NCCL_COMM_ID=10.11.12.14:99",
                                 "CUFILE_ENV_PATH_JSON=/etc/a.json",
                                 "SIDESTEP_NODES=node7=10.11.12.13:47900",
                                 "SIDESTEP_KEY_FILE=/keys/secret.key",
                                 "TORCH_TOKEN=abc",
                                 "UCX_TLS=rc,cuda",
                                 "KUBERNETES_SERVICE_HOST=10.1.2.3"};
    const char* const kept[] = {"HOME=/home",
                                "NCCL_P2P_LEVEL=NVL",
                                "NCCL_P2P_LEVEL_OF=masked",
                                "NCCL_DEBUG=masked",
                                "NCCL_COMM_ID=masked",
                                "CUFILE_ENV_PATH_JSON=/etc/a.json",
                                "SIDESTEP_NODES=masked",
                                "SIDESTEP_KEY_FILE=masked",
                                "TORCH_TOKEN=masked",
                                "UCX_TLS=rc,cuda",
                                "KUBERNETES_SERVICE_HOST=masked"};
    const auto together = [](const auto& entries) {
        std::string text;
        for (const char* entry : entries) text += std::string(entry) + '\0';
        return text;
    };
    EXPECT_EQ(masked("/proc/self/environ", together(given), ""), together(kept));
}

TEST(RecordMasks, KeepOfFilesOfSettingsWhatChecksRead) {
    EXPECT_EQ(
        masked(
            "/etc/nccl.conf",
            "# of node7\nNCCL_P2P_LEVEL=NVL\nNCCL_SOCKET_IFNAME=eth7\nNCCL_COMM_ID 10.1.2.3:99\nSECRET=1\n",
            ""),
        "NCCL_P2P_LEVEL=NVL\nNCCL_SOCKET_IFNAME=masked\nNCCL_COMM_ID=masked\n");
    for (const char* path : {"/etc/cufile.json", "/keys/a.json"}) {
        EXPECT_EQ(
            masked(
                path,
                "// me\n{\"properties\": {\"use_pci_p2pdma\": true, \"rdma_dev_addr_list\": [\"10.1.2.3\"]}}",
                ""),
            "{\"use_pci_p2pdma\": true}\n");
        EXPECT_EQ(masked(path, "{\"logging\": {\"dir\": \"/data/me\"}}", ""),
                  "{\"use_pci_p2pdma\": false}\n");
        EXPECT_EQ(masked(path, "dir /data/me", ""), "masked, and no JSON\n");
    }
    EXPECT_EQ(masked("/keys/a", " {\"logging\": {\"dir\": \"/data/me\"}}", ""),
              "{\"use_pci_p2pdma\": false}\n");
    EXPECT_EQ(masked("/opt/topo", "\n<cpu host_hash=\"0xabc\"/>", ""), "\n<cpu host_hash=\"0x1\"/>");
    EXPECT_EQ(
        masked("/opt/topo.xml",
               "<cpu host_hash=\"0xabc\"><net name=\"a\" guid=\"0xdef\"/></cpu><cpu host_hash=\"0x123\"><net "
               "guid=\"0xdef\"/><net guid=\"0x99",
               ""),
        "<cpu host_hash=\"0x1\"><net name=\"a\" guid=\"0x1\"/></cpu><cpu host_hash=\"0x2\"><net "
        "guid=\"0x1\"/><net "
        "guid=\"0x2");
}

// A check that reads another one has to have it kept: a record would answer "masked" to it.
TEST(RecordMasks, KeepEveryVariableThatIsNamedInTheChecks) {
    const std::regex name("\"((?:NCCL|CUDA|UCX|CUFILE|NVSHMEM|PYTORCH|TORCH|SIDESTEP)_[A-Z0-9_]+)\"");
    std::set<std::string> named;
    for (const char* folder : {"/src/diagnose", "/src/topology"})
        for (const auto& file :
             std::filesystem::recursive_directory_iterator(std::string(SIDESTEP_SOURCE_DIR) + folder)) {
            if (!file.is_regular_file() || file.path().stem() == "record_masks") continue;
            std::stringstream text;
            text << std::ifstream(file.path()).rdbuf();
            const std::string all = text.str();
            for (std::sregex_iterator at(all.begin(), all.end(), name), end; at != end; ++at)
                named.insert((*at)[1]);
        }
    EXPECT_GT(named.size(), 20u);
    for (const std::string& one : named) {
        const std::string entry = one + "=value" + '\0';
        EXPECT_EQ(masked("/proc/self/environ", entry, ""), entry) << one;
    }
}

TEST(RecordMasks, KeepOfMountsWhatChecksRead) {
    const std::pair<const char*, const char*> mounts[] = {
        {"36 22 0:40 / /data rw - nfs4 filer7:/vol/data rw,vers=4,clientaddr=10.1.2.3,addr=10.1.2.4",
         "36 22 0:40 / /data rw - nfs4 masked:/vol/data rw"},
        {"37 22 0:41 / /docs ro shared:3 - cifs //filer8/share ro,username=me,domain=OURS,size=1",
         "37 22 0:41 / /docs ro shared:3 - cifs //masked/share ro,size=1"},
        {"38 22 0:42 / /dev/shm rw - tmpfs shm rw,size=65536k,inode64",
         "38 22 0:42 / /dev/shm rw - tmpfs shm rw,size=65536k"},
        {"39 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw,data=ordered",
         "39 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw,data=ordered"}};
    for (const auto& [given, kept] : mounts)
        EXPECT_EQ(masked("/proc/self/mountinfo", given + std::string("\n"), ""), kept + std::string("\n"));
}

TEST(RecordMasks, ZeroTheSerialNumberOfAPciDevice) {
    std::string space(4096, '\0');
    space[0x100] = 0x03;
    space[0x102] = 0x01;
    space[0x103] = 0x14;  // next: 0x140
    for (std::size_t i = 0x104; i < 0x10c; ++i) space[i] = 'S';
    space[0x140] = 0x0d;
    space[0x146] = 0x1d;
    const std::string kept = masked("/sys/bus/pci/devices/0000:01:00.0/config", space, "");
    EXPECT_EQ(kept.find('S'), std::string::npos);
    EXPECT_EQ(kept[0x146], 0x1d) << "access control stays";
    EXPECT_EQ(kept.size(), space.size());
    // A list in a circle ends.
    space[0x143] = 0x10;
    EXPECT_EQ(masked("/sys/x/config", space, "").find('S'), std::string::npos);
}

TEST(DriverRecords, RoundTrip) {
    driver::CudaFacts cuda{
        true, "", 802, "CUDA_ERROR_SYSTEM_NOT_READY", 13000, {{"0000:1b:00.0", {{"DMA_BUF_SUPPORTED", 1}}}}};
    const auto read = cuda_from_json(cuda_to_json(cuda), "here");
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(cuda_to_json(*read), cuda_to_json(cuda));
    EXPECT_EQ(read->gpus.front().attributes.at("DMA_BUF_SUPPORTED"), 1);
    EXPECT_EQ(cuda_from_json("{}", "here").error().code, ErrorCode::invalid_argument);

    driver::VerbsFacts verbs{
        true, "", {{"mlx5_0", true, "", false, "EOPNOTSUPP"}, {"mlx5_1", false, "EACCES", {}, ""}}};
    const auto again = verbs_from_json(verbs_to_json(verbs), "here");
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->devices[0].dma_buf, false);
    EXPECT_FALSE(again->devices[1].dma_buf);
    EXPECT_EQ(verbs_to_json(*again), verbs_to_json(verbs));
    EXPECT_FALSE(verbs_from_json("[", "here").ok());
}

TEST(NvmlRecords, GiveTheSameAnswers) {
    H200Machine machine;
    machine.nvml.gpus[1].facts.mig = true;
    machine.nvml.gpus[2].lost = true;
    machine.nvml.gpus[3].fabric.reset();
    machine.nvml.p2p_status[{0, 1, driver::P2pCapability::read}] = driver::P2pStatus::disabled_by_regkey;
    machine.nvml.ancestors[{0, 1}] = driver::CommonAncestor::single_switch;
    const std::string text = topology::nvml_to_json(machine.nvml);
    EXPECT_EQ(text.find("GPU-"), std::string::npos) << "no UUIDs";
    const auto replayed = topology::nvml_from_json(text, "nvml.json");
    ASSERT_TRUE(replayed.ok()) << replayed.error().to_string();
    EXPECT_EQ(topology::nvml_to_json(**replayed), text);
    EXPECT_EQ((*replayed)->gpu(1)->mig, true);
    EXPECT_EQ((*replayed)->gpu(2).error().message, "NVML cannot open the GPU: lost");
    EXPECT_EQ((*replayed)->fabric(3).error().code, ErrorCode::unsupported);
    EXPECT_EQ(*(*replayed)->p2p(0, 1, driver::P2pCapability::read), driver::P2pStatus::disabled_by_regkey);
    EXPECT_EQ(*(*replayed)->common_ancestor(0, 1), driver::CommonAncestor::single_switch);
    EXPECT_FALSE((*replayed)->gpu(9).ok());
    EXPECT_FALSE(topology::nvml_from_json("{\"format\": \"other\", \"version\": 1}", "x").ok());
    EXPECT_FALSE(topology::nvml_from_json("nonsense", "x").ok());
}

// The machine this test runs on, whatever it is: what the record says must be what the machine says.
TEST(Record, ThisMachineReplays) {
    const Folder folder;
    const auto written = record_machine(folder.path());
    ASSERT_TRUE(written.ok()) << written.error().to_string();

    auto live = Topology::live();
    auto replayed = Topology::live(folder.path());
    ASSERT_TRUE(live.ok() && replayed.ok()) << replayed.error().to_string();
    EXPECT_TRUE(replayed->emulated());
    EXPECT_EQ(replayed->devices(), live->devices());
    EXPECT_EQ(replayed->links(), live->links());
    EXPECT_EQ(replayed->parts().peers, live->parts().peers);
    EXPECT_EQ(replayed->parts().properties, live->parts().properties);

    const auto here = run_doctor({"live", {}});
    const auto there = run_doctor({folder.path(), {}});
    ASSERT_TRUE(here.ok() && there.ok()) << there.error().to_string();
    ASSERT_EQ(here->findings.size(), there->findings.size());
    for (std::size_t i = 0; i < here->findings.size(); ++i) {
        EXPECT_EQ(here->findings[i].verdict, there->findings[i].verdict) << here->findings[i].id;
        EXPECT_EQ(here->findings[i].summary, there->findings[i].summary) << here->findings[i].id;
    }
}

TEST(Record, HoldsNoHostName) {
    std::ifstream file("/proc/sys/kernel/hostname");
    std::string name;
    file >> name;
    if (name.size() < 4 || name == "localhost")
        GTEST_SKIP() << "the host name '" << name << "' is too plain to look for";
    const Folder folder;
    ASSERT_TRUE(record_machine(folder.path()).ok());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
        if (!entry.is_regular_file() || entry.is_symlink()) continue;
        std::stringstream text;
        text << std::ifstream(entry.path()).rdbuf();
        EXPECT_EQ(text.str().find(name), std::string::npos) << entry.path();
    }
}

// A virtual machine with two H200, recorded by the command: what is off there, and nothing else.
TEST(Record, TheH200MachineIsExaminedAsItWas) {
    const std::string root = SIDESTEP_RECORDED_H200;
    const auto machine = Topology::live(root);
    ASSERT_TRUE(machine.ok()) << machine.error().to_string();
    EXPECT_EQ(machine->gpu_count(), 2);
    EXPECT_EQ(to_string(machine->pair_class(*machine->find(Place::gpu(0)), *machine->find(Place::gpu(1)))),
              "NV18");
    EXPECT_EQ(machine->device(*machine->find(Place::gpu(1))).properties.at("nvlinks"), "18 of 18");
    EXPECT_EQ(machine->parts().properties.at("nvidia_driver_kind"), "open");

    const auto diagnosis = run_doctor({root, {}});
    ASSERT_TRUE(diagnosis.ok());
    // It has no network card and no drive to be slow with, and is well otherwise.
    EXPECT_EQ(diagnosis->health(), Health::well) << diagnosis->to_string();
    EXPECT_EQ(diagnosis->gpus, 2);
}

TEST(Record, RefusesAFolderThatHoldsSomething) {
    const Folder folder;
    std::ofstream(folder.path() + "/mine") << "x";
    const auto written = record_machine(folder.path());
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(Topology::live("/no/such/folder").error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace sidestep::diagnose
