#!/usr/bin/env python3
"""A kubelet, as far as device plugins, drivers of dynamic resource allocation and CNI plugins meet it.

It registers device plugins and drivers, gives their devices to containers of pods and says which pods have which, with the messages of
k8s.io/kubelet/pkg/apis (deviceplugin/v1beta1, pluginregistration/v1, dra/v1, podresources/v1). A test directs it by lines of JSON on
standard input, and each is answered by one:

  {"do": "devices", "resource": R}                      healthy and known devices of a resource
  {"do": "admit", "pod": "NAMESPACE/NAME", "resource": R, "count": 1}   what a container of a new pod is created with
  {"do": "start", "pod": "NAMESPACE/NAME"}              a container of it starts, for the first time or again
  {"do": "end", "pod": "NAMESPACE/NAME"}                it ends, and its devices are free
  {"do": "prepare", "driver": D, "claim": {"namespace": …, "name": …, "uid": …}, "pod": NAME}   devices of a claim, of a pod that has it
  {"do": "unprepare", "driver": D, "claim": …}          no pod has the claim any more
"""

import json
import os
import sys
import threading
import urllib.parse
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TYPE = descriptor_pb2.FieldDescriptorProto

DEVICE_PLUGIN = """
    Empty
    DevicePluginOptions pre_start_required=1:bool get_preferred_allocation_available=2:bool
    RegisterRequest version=1:string endpoint=2:string resource_name=3:string options=4:DevicePluginOptions
    NUMANode ID=1:int64
    TopologyInfo nodes=1:*NUMANode
    Device ID=1:string health=2:string topology=3:TopologyInfo
    ListAndWatchResponse devices=1:*Device
    ContainerAllocateRequest devices_ids=1:*string
    AllocateRequest container_requests=1:*ContainerAllocateRequest
    Pair key=1:string value=2:string
    Mount container_path=1:string host_path=2:string read_only=3:bool
    ContainerAllocateResponse envs=1:*Pair mounts=2:*Mount
    AllocateResponse container_responses=1:*ContainerAllocateResponse
    PreStartContainerRequest devices_ids=1:*string
    PreStartContainerResponse
"""
POD_RESOURCES = """
    ListPodResourcesRequest
    ContainerDevices resource_name=1:string device_ids=2:*string
    CDIDevice name=1:string
    ClaimResource cdi_devices=1:*CDIDevice driver_name=2:string pool_name=3:string device_name=4:string
    DynamicResource claim_name=2:string claim_namespace=3:string claim_resources=4:*ClaimResource
    ContainerResources name=1:string devices=2:*ContainerDevices dynamic_resources=5:*DynamicResource
    PodResources name=1:string namespace=2:string containers=3:*ContainerResources
    ListPodResourcesResponse pod_resources=1:*PodResources
"""
REGISTRATION = """
    InfoRequest
    PluginInfo type=1:string name=2:string endpoint=3:string supported_versions=4:*string
    RegistrationStatus plugin_registered=1:bool error=2:string
    RegistrationStatusResponse
"""
DRA = """
    Claim namespace=1:string uid=2:string name=3:string
    NodePrepareResourcesRequest claims=1:*Claim
    Device request_names=1:*string pool_name=2:string device_name=3:string cdi_device_ids=4:*string
    NodePrepareResourceResponse devices=1:*Device error=2:string
    Prepared key=1:string value=2:NodePrepareResourceResponse
    NodePrepareResourcesResponse claims=1:*Prepared
    NodeUnprepareResourcesRequest claims=1:*Claim
    NodeUnprepareResourceResponse error=1:string
    Unprepared key=1:string value=2:NodeUnprepareResourceResponse
    NodeUnprepareResourcesResponse claims=1:*Unprepared
"""
DRA_PACKAGE = "k8s.io.kubelet.pkg.apis.dra.v1"


def messages(package, text):
    """The classes of messages, from lines of name=number:type, with * before the type of a repeated field."""
    file = descriptor_pb2.FileDescriptorProto(name=package + ".proto", package=package, syntax="proto3")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for field in fields:
            name, kind = field.split("=")
            number, kind = kind.split(":")
            entry = message.field.add(name=name, number=int(number))
            entry.label = TYPE.LABEL_REPEATED if kind.startswith("*") else TYPE.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            entry.type = getattr(TYPE, "TYPE_" + kind.upper(), TYPE.TYPE_MESSAGE)
            if entry.type == TYPE.TYPE_MESSAGE:
                entry.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {m.name: factory.GetPrototype(pool.FindMessageTypeByName(f"{package}.{m.name}")) for m in file.message_type}


PLUGIN = messages("v1beta1", DEVICE_PLUGIN)
PODS = messages("v1", POD_RESOURCES)
REGISTERED = messages("pluginregistration", REGISTRATION)
CLAIMS = messages(DRA_PACKAGE, DRA)


class Plugin:
    """A registered device plugin, and its devices."""

    def __init__(self, folder, request):
        self.resource, self.health, self.taken = request.resource_name, {}, {}
        self.channel = grpc.insecure_channel("unix://" + os.path.join(folder, request.endpoint))
        assert request.version == "v1beta1", request
        options = self.ask("GetDevicePluginOptions", PLUGIN["Empty"](), "DevicePluginOptions")
        assert options == request.options, (options, request.options)
        threading.Thread(target=self.watch, daemon=True).start()

    def ask(self, method, request, answer):
        call = self.channel.unary_unary("/v1beta1.DevicePlugin/" + method, type(request).SerializeToString, PLUGIN[answer].FromString)
        return call(request, timeout=10)

    def watch(self):
        answer = PLUGIN["ListAndWatchResponse"].FromString
        call = self.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", PLUGIN["Empty"].SerializeToString, answer)
        try:
            for devices in call(PLUGIN["Empty"]()):
                self.health = {device.ID: device.health for device in devices.devices}
        except grpc.RpcError:
            # As the kubelet's: devices of a plugin that has ended are not healthy.
            self.health = {device: "Unhealthy" for device in self.health}

    def free(self):
        return sorted(d for d, health in self.health.items() if health == "Healthy" and d not in self.taken)


class Driver:
    """A driver of dynamic resource allocation, found by its socket in the registry."""

    def __init__(self, registry, name):
        [file] = (file for file in os.listdir(registry) if file.startswith(name))
        path = os.path.join(registry, file)
        # As the kubelet's client, which knows no better name of such a server.
        authority = urllib.parse.quote(path, safe="-_.~!$&'()*+,;=:[]@")
        registration = grpc.insecure_channel("unix://" + path, options=[("grpc.default_authority", authority)])
        service = "/pluginregistration.Registration/"
        info = self.call(registration, service + "GetInfo", REGISTERED["InfoRequest"](), REGISTERED["PluginInfo"])
        assert (info.type, info.name) == ("DRAPlugin", name) and "v1.DRAPlugin" in info.supported_versions, info
        self.channel = grpc.insecure_channel("unix://" + info.endpoint)
        status = REGISTERED["RegistrationStatus"](plugin_registered=True)
        self.call(registration, service + "NotifyRegistrationStatus", status, REGISTERED["RegistrationStatusResponse"])

    def call(self, channel, path, request, answer):
        call = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        return call(request, timeout=20, wait_for_ready=True)

    def ask(self, method, claim):
        request = CLAIMS[method + "Request"](claims=[CLAIMS["Claim"](**claim)])
        answer = self.call(self.channel, f"/{DRA_PACKAGE}.DRAPlugin/{method}", request, CLAIMS[method + "Response"])
        [one] = answer.claims
        assert one.key == claim["uid"], answer
        return one.value


class Kubelet:
    def __init__(self, directory):
        self.registry, self.drivers, self.claimed = os.path.join(directory, "plugins_registry"), {}, {}
        self.folder, self.plugins, self.servers = os.path.join(directory, "device-plugins"), {}, []
        # As the kubelet does when it starts: sockets of plugins that it does not know yet are removed.
        os.makedirs(self.folder, exist_ok=True)
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        register = grpc.unary_unary_rpc_method_handler(self.register, PLUGIN["RegisterRequest"].FromString, PLUGIN["Empty"].SerializeToString)
        self.serve(os.path.join(self.folder, "kubelet.sock"), "v1beta1.Registration", "Register", register)
        pods = os.path.join(directory, "pod-resources")
        os.makedirs(pods, exist_ok=True)
        answer = PODS["ListPodResourcesResponse"].SerializeToString
        listed = grpc.unary_unary_rpc_method_handler(self.list, PODS["ListPodResourcesRequest"].FromString, answer)
        self.serve(os.path.join(pods, "kubelet.sock"), "v1.PodResourcesLister", "List", listed)

    def serve(self, socket, service, method, handler):
        if os.path.exists(socket):
            os.remove(socket)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        assert server.add_insecure_port("unix://" + socket)
        server.start()
        # One that nothing refers to ends.
        self.servers.append(server)

    def register(self, request, _context):
        self.plugins[request.resource_name] = Plugin(self.folder, request)
        return PLUGIN["Empty"]()

    def list(self, _request, _context):
        answer = PODS["ListPodResourcesResponse"]()
        for plugin in self.plugins.values():
            for device, pod in plugin.taken.items():
                namespace, name = pod.split("/")
                container = answer.pod_resources.add(name=name, namespace=namespace).containers.add(name="main")
                container.devices.add(resource_name=plugin.resource, device_ids=[device])
        for (driver, _), (claim, pods, devices) in self.claimed.items():
            for name in pods:
                container = answer.pod_resources.add(name=name, namespace=claim["namespace"]).containers.add(name="main")
                claimed = container.dynamic_resources.add(claim_name=claim["name"], claim_namespace=claim["namespace"])
                for device in devices:
                    cdi = [PODS["CDIDevice"](name=one) for one in device.cdi_device_ids]
                    one = {"driver_name": driver, "pool_name": device.pool_name, "device_name": device.device_name}
                    claimed.claim_resources.add(cdi_devices=cdi, **one)
        return answer

    def of(self, pod):
        return [(plugin, d) for plugin in self.plugins.values() for d, holder in plugin.taken.items() if holder == pod]

    def devices(self, resource):
        health = self.plugins[resource].health.values() if resource in self.plugins else []
        return {"known": len(health), "healthy": list(health).count("Healthy")}

    def admit(self, pod, resource, count=1):
        plugin = self.plugins[resource]
        devices = plugin.free()[:count]
        assert len(devices) == count, f"{resource}: {len(devices)} free devices"
        request = PLUGIN["AllocateRequest"]()
        request.container_requests.add(devices_ids=devices)
        [answer] = plugin.ask("Allocate", request, "AllocateResponse").container_responses
        plugin.taken.update((device, pod) for device in devices)
        mounts = [{"inside": m.container_path, "host": m.host_path, "read_only": m.read_only} for m in answer.mounts]
        return {"device": devices[0], "mounts": mounts, "variables": {pair.key: pair.value for pair in answer.envs}}

    def start(self, pod):
        for plugin, device in self.of(pod):
            request = PLUGIN["PreStartContainerRequest"](devices_ids=[device])
            plugin.ask("PreStartContainer", request, "PreStartContainerResponse")
        return {}

    def end(self, pod):
        for plugin, device in self.of(pod):
            del plugin.taken[device]
        return {}

    def driver(self, name):
        if name not in self.drivers:
            self.drivers[name] = Driver(self.registry, name)
        return self.drivers[name]

    def prepare(self, driver, claim, pod):
        prepared = self.driver(driver).ask("NodePrepareResources", claim)
        if not prepared.error:
            self.claimed.setdefault((driver, claim["uid"]), (claim, [], prepared.devices))[1].append(pod)
        shown = [{"requests": list(d.request_names), "pool": d.pool_name, "device": d.device_name, "cdi": list(d.cdi_device_ids)} for d in prepared.devices]
        return {"devices": shown, "error": prepared.error}

    def unprepare(self, driver, claim):
        error = self.driver(driver).ask("NodeUnprepareResources", claim).error
        if not error:
            self.claimed.pop((driver, claim["uid"]), None)
        return {"error": error}


def main():
    kubelet = Kubelet(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(kubelet, order.pop("do"))(**order)
        except grpc.RpcError as error:
            answer = {"error": error.code().name, "words": error.details()}
        except AssertionError as error:
            answer = {"error": "ADMISSION", "words": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
