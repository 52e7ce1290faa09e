// A CUDA device for a build of torch without CUDA: tensors may be on cuda:0, and nothing computes there. Operators are
// computed by tests/simcuda/device.py. Loaded before torch, which looks for the hooks once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace simcuda {

constexpr auto kType = c10::DeviceType::CUDA;

class OnlyDevice final : public c10::impl::NoOpDeviceGuardImpl<kType> {
 public:
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(kType, 0); }
  c10::Stream getStream(c10::Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return getStream(stream.device()); }
};

const bool registered = [] {
  static OnlyDevice device;
  c10::impl::registerDeviceGuard(kType, &device);
  return true;
}();

}  // namespace simcuda

namespace at {

class SimulatedHooks final : public CUDAHooksInterface {
 public:
  explicit SimulatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
  Device getDeviceFromPtr(void*) const override { return Device(simcuda::kType, 0); }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return detail::getDefaultCPUGenerator(); }
  Generator getNewGenerator(DeviceIndex) const override { return detail::createCPUGenerator(); }
};

C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, SimulatedHooks)

}  // namespace at
