// Faults that are made up in a machine that is well, and what the doctor says of it.
#include <gtest/gtest.h>

#include <algorithm>

#include <sidestep/doctor.hpp>

#include "diagnose/diagnose.hpp"

namespace sidestep {
namespace {

Diagnosis doctor(const std::string& machine) {
    auto diagnosis = run_doctor({machine, {}});
    EXPECT_TRUE(diagnosis.ok()) << machine << ": " << (diagnosis.ok() ? "" : diagnosis.error().to_string());
    return diagnosis.ok() ? std::move(*diagnosis) : Diagnosis();
}

TEST(Faults, ABuiltInMachineIsWell) {
    for (const std::string& name : Topology::model_names()) {
        const Diagnosis diagnosis = doctor(name);
        EXPECT_EQ(diagnosis.count(Verdict::fail), 0) << name << "\n" << diagnosis.to_string();
        if (name.starts_with("dgx")) {
            EXPECT_EQ(diagnosis.health(), Health::well) << diagnosis.to_string();
        }
        // What a topology cannot tell is said, once.
        EXPECT_GT(diagnosis.count(Verdict::unknown), 20) << name;
        const std::string text = diagnosis.to_string();
        const std::string why = "a topology alone does not tell";
        EXPECT_EQ(text.find(why, text.find(why) + 1), std::string::npos) << text;
    }
}

TEST(Faults, EachIsFoundFirst) {
    const struct {
        const char* fault;
        const char* first;
        Health health;
    } cases[] = {
        {"gpu:3.width=8", "pcie-trained-down", Health::warnings},
        {"gpu:3.gen=3", "odd-one-out", Health::warnings},
        {"gpu:3.nvlinks=9", "nvlinks-inactive", Health::failures},
        {"gpu:3.memory=40", "odd-one-out", Health::warnings},
        {"gpu:3.replays=48213", "pcie-errors", Health::warnings},
        {"gpu:3.lost", "gpu-lost", Health::failures},
        {"nic:mlx5_0.rate=100", "odd-one-out", Health::warnings},
        {"nic:mlx5_0.down", "nic-down", Health::warnings},
        {"nic-rate", "odd-one-out", Health::warnings},
        {"no-driver", "driver-mismatch", Health::no_driver},
        {"fabric-down", "fabric-manager", Health::failures},
        {"mig", "mig-on", Health::warnings},
        {"confidential", "confidential-computing", Health::warnings},
        {"bar1", "bar1-small", Health::warnings},
        {"acs", "acs-redirect", Health::warnings},
    };
    for (const auto& one : cases) {
        const Diagnosis diagnosis = doctor(std::string("dgx-h100!") + one.fault);
        ASSERT_FALSE(diagnosis.findings.empty());
        EXPECT_EQ(diagnosis.findings.front().id, one.first) << diagnosis.to_string();
        EXPECT_EQ(diagnosis.health(), one.health) << diagnosis.to_string();
    }
}

TEST(Faults, TakeTheLinksOfARoute) {
    const auto well = Topology::open("dgx-h100");
    const auto narrow = Topology::open("dgx-h100!gpu:3.width=8");
    const auto rate = [](const Topology& topology, int gpu) {
        const auto id = topology.find(DeviceKind::gpu, gpu);
        return topology.pair(*id, *topology.cpu_of(*id)).gb_per_s;
    };
    EXPECT_NEAR(rate(*narrow, 3), rate(*well, 3) / 2, 0.1);
    EXPECT_EQ(rate(*narrow, 2), rate(*well, 2));
    EXPECT_FALSE(Topology::open("dgx-h100!fabric-down")->peer_access(0, 1).allowed);
    EXPECT_EQ(Topology::open("dgx-h100!gpu:3.lost!gpu:3.lost")->gpu_count(), 6);
}

TEST(Faults, BadOnesAreRefused) {
    const struct {
        const char* machine;
        const char* words;
    } cases[] = {
        {"dgx-h100!gpu:3.widht=8", "did you mean 'width'?"},
        {"dgx-h100!unheard-of", "the faults are: gpu:3.width=N"},
        {"dgx-h100!gpu:9.width=8", "has no gpu:9"},
        {"dgx-h100!gpu:3.width", "a number from 1 to 16"},
        {"dgx-h100!gpu:3.width=eight", "a number from 1 to 16"},
        {"dgx-h100!gpu:3.width=16", "is not slower"},
        {"dgx-h100!acs=1", "it takes no number"},
        {"dgx-h100!gpu:3.acs", "acs is of the machine"},
        {"dgx-h100!width=8", "width is of gpu or nic"},
        {"dgx-h100!nic:mlx5_0.nvlinks=3", "nvlinks is of gpu"},
        {"dgx-h100!gpu:3.nvlinks=18", "fewer have to be left"},
        {"dgx-h100!", "there is none of that name"},
        {"live!acs", "takes no faults"},
    };
    for (const auto& one : cases) {
        const auto opened = Topology::open(one.machine);
        ASSERT_FALSE(opened.ok()) << one.machine;
        EXPECT_NE(opened.error().to_string().find(one.words), std::string::npos)
            << opened.error().to_string();
    }
}

TEST(MachineNames, AreRefusedWithWhatWasMeant) {
    const struct {
        const char* name;
        ErrorCode code;
        const char* words;
    } cases[] = {
        {"dgx-h1000", ErrorCode::not_found, "did you mean 'dgx-h100'?"},
        {"no-machine-of-this-sort", ErrorCode::not_found, "the machines are: live, dgx-1v"},
        {"/usr/bin", ErrorCode::invalid_argument, "is no record of a machine"},
        {"/no/such/folder", ErrorCode::not_found, ""},
        {"dgx-h100*100000000", ErrorCode::invalid_argument, ""},
    };
    for (const auto& one : cases) {
        for (const auto& error : {Topology::open(one.name).error(), run_doctor({one.name, {}}).error()}) {
            EXPECT_EQ(error.code, one.code) << one.name << ": " << error.to_string();
            EXPECT_NE(error.to_string().find(one.words), std::string::npos) << error.to_string();
        }
    }
    EXPECT_EQ(run_doctor({"dgx-h100*1000", {}}).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace sidestep
