#!/usr/bin/env python3
"""Implementation-neutral CNI plugin benchmark (python3 stdlib only; run as root).

Invokes plugins the way a container runtime does: CNI_* environment, one plugin config
(name + cniVersion injected, prevResult where the spec says so) on stdin, result on stdout.
ADD and DEL are timed separately; every ADD is verified (result has an IP, the IP is on the
interface inside the netns, the host routes the IP to a non-default, non-local device).

  bench_cni.py --bin-dir DIR --conf FILE [--runs 100] [--concurrency 1] [--warmup 5]
               [--cni-args 'K=V;K=V'] [--env K=V]... [--check] [--ping] [--rss N]
               [--add-only] [--batch] [--ids-prefix P] [--label L] [--out FILE]
               [--server-pid PID]   (CPU of a resident server per operation; with --alt-* only those of the main side are counted)
               [--alt-bin-dir DIR2 --alt-conf FILE2]...   (others, in turn with the main one; default mode only;
                reported under "alts", in the order given, so that all see the same machine noise)
  bench_cni.py --exec 'CMD ARGS' --runs 100        # process start cost only

Modes:
  default      each worker does ADD, verify, DEL, verify-gone, in a loop (netns made beforehand).
  --batch      all ADDs first (concurrency C), then verify all, then all DELs (concurrency C).
               This is the mode for throughput: adds/s = runs / wall time of the ADD phase.
  --add-only   leave the containers in place (prints ids); use for pre-filling.
  --rss N      additionally N ADD/DEL pairs sampled for VmHWM of every process in the tree.
Prints one JSON object.  CPU (user/sys) is of the plugin and all children it waited for
(wait4 rusage).  maxrss_kb from wait4 has a floor of python's own RSS (exec after vfork keeps
it), so for small plugins use --rss, which reads VmHWM from /proc.
"""

import argparse
import collections
import json
import os
import queue
import shlex
import statistics
import subprocess
import threading
import time
import uuid


def sh(*a, check=False):
    p = subprocess.run(a, capture_output=True, text=True)
    if check and p.returncode:
        raise RuntimeError(f"{a}: {p.stderr}")
    return p


def loadavg():
    return open("/proc/loadavg").read().split()[:3]


def memfd(data=b""):
    fd = os.memfd_create("cni", 0)
    if data:
        os.write(fd, data)
        os.lseek(fd, 0, 0)
    return fd


class Res:
    pass


def spawn(path, argv, env, stdin=b"", sampler=None):
    i, o, e = memfd(stdin), memfd(), memfd()
    r = Res()
    t0 = time.perf_counter()
    pid = os.posix_spawn(
        path,
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, i, 0), (os.POSIX_SPAWN_DUP2, o, 1), (os.POSIX_SPAWN_DUP2, e, 2)],
    )
    if sampler:
        sampler(pid)
    _, st, ru = os.wait4(pid, 0)
    r.ms = (time.perf_counter() - t0) * 1e3
    r.rc = os.waitstatus_to_exitcode(st)
    r.user, r.sys, r.maxrss = ru.ru_utime * 1e3, ru.ru_stime * 1e3, ru.ru_maxrss

    def rd(fd):
        n = os.fstat(fd).st_size
        return os.pread(fd, n, 0)

    r.out, r.err = rd(o), rd(e)
    for fd in (i, o, e):
        os.close(fd)
    return r


def tree(pid):
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        try:
            for t in os.listdir("/proc/%d/task" % p):
                with open("/proc/%d/task/%s/children" % (p, t)) as f:
                    todo += [int(x) for x in f.read().split()]
        except OSError:
            pass
    return out


def vm(pid):
    try:
        d = {}
        with open("/proc/%d/status" % pid) as f:
            for l in f:
                if l.startswith(("VmHWM", "VmRSS", "Name")):
                    k, v = l.split(":", 1)
                    d[k] = v.split()[0]
        return d
    except OSError:
        return {}


OWN = os.readlink("/proc/self/exe")


class RssSampler:
    """polls the process tree until the root exits; name -> max VmHWM, and peak sum of VmRSS"""

    def __init__(self):
        self.hwm = {}
        self.peak_sum = 0

    def __call__(self, pid):
        stop = time.time() + 60
        while time.time() < stop:
            s = 0
            alive = False
            for p in tree(pid):
                d = vm(p)
                if "VmHWM" in d:
                    if p == pid:
                        alive = True
                    n = d.get("Name", "?")
                    try:
                        if os.readlink("/proc/%d/exe" % p) == OWN:
                            continue  # not exec'd yet: it still has this program's memory
                        n = (
                            os.path.basename(os.readlink("/proc/%d/exe" % p))
                            + ":"
                            + os.path.basename(open("/proc/%d/cmdline" % p).read().split("\0")[0])
                        )
                    except OSError:
                        pass
                    self.hwm[n] = max(self.hwm.get(n, 0), int(d["VmHWM"]))
                    s += int(d.get("VmRSS", 0))
            self.peak_sum = max(self.peak_sum, s)
            if not alive:
                return
            time.sleep(0.0005)


def vtuple(v):
    return tuple(int(x) for x in v.split("."))


class Bench:
    def __init__(s, a):
        s.a = a
        j = json.load(open(a.conf)) if os.path.exists(a.conf) else json.loads(a.conf)
        if "plugins" not in j:
            j = {"name": j["name"], "cniVersion": j["cniVersion"], "plugins": [j]}
        s.name, s.ver, s.plugins = j["name"], a.cni_version or j["cniVersion"], j["plugins"]
        s.run_id = a.ids_prefix or uuid.uuid4().hex[:6]

    def conf(s, p, prev):
        c = dict(p)
        c["name"] = s.name
        c["cniVersion"] = s.ver
        caps = c.pop("capabilities", None)
        if caps and s.a.runtime_config:
            rc = json.loads(s.a.runtime_config)
            rc = {k: v for k, v in rc.items() if caps.get(k)}
            if rc:
                c["runtimeConfig"] = rc
        if prev is not None:
            c["prevResult"] = prev
        return json.dumps(c).encode()

    def env(s, cmd, cid, ns):
        e = {
            "CNI_COMMAND": cmd,
            "CNI_CONTAINERID": cid,
            "CNI_NETNS": ns,
            "CNI_IFNAME": s.a.ifname,
            "CNI_PATH": s.a.bin_dir,
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        }
        if s.a.cni_args:
            e["CNI_ARGS"] = s.a.cni_args.replace("%ID%", cid)
        for kv in s.a.env:
            k, v = kv.split("=", 1)
            e[k] = v
        return e

    def one(s, p, cmd, cid, ns, prev, sampler=None):
        path = os.path.join(s.a.bin_dir, p["type"])
        return spawn(path, [path], s.env(cmd, cid, ns), s.conf(p, prev), sampler)

    def cmd(s, cmd, cid, ns, prev=None, sampler=None):
        """run a CNI command over the whole plugin list; returns merged Res"""
        t = Res()
        t.ms = t.user = t.sys = 0.0
        t.maxrss = 0
        t.rc = 0
        t.err = b""
        t.result = prev if cmd != "ADD" else None
        t.out = b""
        ps = s.plugins if cmd != "DEL" else list(reversed(s.plugins))
        for p in ps:
            if cmd == "ADD":
                pr = t.result
            else:
                pr = prev if vtuple(s.ver) >= (0, 4, 0) else None
            r = s.one(p, cmd, cid, ns, pr, sampler)
            t.ms += r.ms
            t.user += r.user
            t.sys += r.sys
            t.maxrss = max(t.maxrss, r.maxrss)
            t.out = r.out
            t.err += r.err
            if r.rc:
                t.rc = r.rc
                break
            if cmd == "ADD":
                try:
                    t.result = json.loads(r.out)
                except ValueError:
                    t.rc = -99
                    break
        return t

    def cid(s, n):
        return (f"{s.run_id}{n:04x}") + uuid.uuid5(uuid.NAMESPACE_URL, "%s-%d" % (s.run_id, n)).hex

    def mkns(s, n):
        ns = "bn-%s-%d" % (s.run_id, n)
        sh("ip", "netns", "add", ns, check=True)
        sh("ip", "-n", ns, "link", "set", "lo", "up")
        return ns

    def rmns(s, ns):
        sh("ip", "netns", "del", ns)

    def verify(s, r, ns):
        """-> '' if good else reason"""
        if s.a.no_verify:
            return ""
        try:
            ips = [x["address"].split("/")[0] for x in r.result["ips"]]
        except Exception:
            return "result has no ips"
        if not ips:
            return "result has no ips"
        aj = json.loads(sh("ip", "-n", ns, "-j", "addr", "show", "dev", s.a.ifname).stdout or "[]")
        have = {x.get("local") for d in aj for x in d.get("addr_info", [])}
        for ip in ips:
            if ip not in have:
                return f"ip {ip} not on {s.a.ifname} in netns"
            fam = "-6" if ":" in ip else "-4"
            g = json.loads(sh("ip", fam, "-j", "route", "get", ip).stdout or "[]")
            if not g or g[0].get("type") in ("local", "unreachable", "blackhole"):
                return f"no host route to {ip}: {g}"
            if g[0].get("gateway"):
                return "host routes {} via gateway {} ({})".format(ip, g[0]["gateway"], g[0].get("dev"))
            if s.a.ping and sh("ping", fam, "-c1", "-W2", ip).returncode:
                return f"ping {ip} failed"
        return ""

    def gone(s, r, ns):
        if s.a.no_verify:
            return ""
        if sh("ip", "-n", ns, "link", "show", s.a.ifname).returncode == 0:
            return "interface still there after DEL"
        for x in (r.result or {}).get("ips", []):
            ip = x["address"].split("/")[0]
            o = sh("ip", "-6" if ":" in ip else "-4", "route", "show", ip).stdout.strip()
            if o:
                return "host route left after DEL: " + o
        return ""


def stats(xs):
    if not xs:
        return {"n": 0}
    xs = sorted(xs)
    n = len(xs)

    def q(p):
        return xs[min(n - 1, round(p * (n - 1)))]

    return {
        k: round(v, 3)
        for k, v in {
            "n": n,
            "min": xs[0],
            "median": statistics.median(xs),
            "mean": sum(xs) / n,
            "p90": q(0.9),
            "p99": q(0.99),
            "max": xs[-1],
        }.items()
    }


def summ(rs):
    ok = [r for r in rs if r.rc == 0]
    bad = [r for r in rs if r.rc != 0]
    errs = collections.Counter()
    for r in bad:
        try:
            m = json.loads(r.out)
            m = "code {}: {} {}".format(m.get("code"), m.get("msg"), m.get("details", ""))
        except ValueError:
            m = "rc {}: {}".format(r.rc, r.out[-200:].decode("replace") or r.err[-300:].decode("replace"))
        errs[m[:300]] += 1
    return {
        "ok": len(ok),
        "failed": len(bad),
        "errors": dict(errs.most_common(5)),
        "wall_ms": stats([r.ms for r in ok]),
        "cpu_user_ms": stats([r.user for r in ok]),
        "cpu_sys_ms": stats([r.sys for r in ok]),
        "cpu_total_ms": stats([r.user + r.sys for r in ok]),
        "maxrss_kb": max([r.maxrss for r in ok] or [0]),
    }


def pool(c, items, fn):
    q = queue.Queue()
    for it in items:
        q.put(it)

    def w():
        while True:
            try:
                it = q.get_nowait()
            except queue.Empty:
                return
            fn(it)

    ts = [threading.Thread(target=w) for _ in range(c)]
    t0 = time.perf_counter()
    [t.start() for t in ts]
    [t.join() for t in ts]
    return time.perf_counter() - t0


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--bin-dir")
    p.add_argument("--conf")
    p.add_argument("--runs", type=int, default=100)
    p.add_argument("--concurrency", type=int, default=1)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--cni-args", default="")
    p.add_argument("--env", action="append", default=[])
    p.add_argument("--cni-version")
    p.add_argument("--alt-bin-dir", action="append", default=[])
    p.add_argument("--alt-conf", action="append", default=[])
    p.add_argument("--runtime-config")
    p.add_argument("--ifname", default="eth0")
    p.add_argument("--check", action="store_true")
    p.add_argument("--ping", action="store_true")
    p.add_argument("--rss", type=int, default=0)
    p.add_argument("--add-only", action="store_true")
    p.add_argument("--batch", action="store_true")
    p.add_argument("--ids-prefix")
    p.add_argument("--label")
    p.add_argument("--no-verify", action="store_true")
    p.add_argument("--exec", dest="execcmd")
    p.add_argument("--out")
    p.add_argument("--server-pid", type=int, help="resident server: its CPU (all threads) is reported per operation")
    a = p.parse_args()
    tick = os.sysconf("SC_CLK_TCK")

    def server_ms():
        if not a.server_pid:
            return 0.0
        f = open("/proc/%d/stat" % a.server_pid).read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) * 1e3 / tick

    out = {
        "label": a.label,
        "time": time.strftime("%FT%TZ", time.gmtime()),
        "load_before": loadavg(),
        "runs": a.runs,
        "concurrency": a.concurrency,
    }
    if a.execcmd:
        av = shlex.split(a.execcmd)
        rs = []
        for k in range(a.runs + a.warmup):
            r = spawn(av[0], av, dict(os.environ))
            if k >= a.warmup:
                rs.append(r)
        out["exec"] = summ(rs)
    else:
        b = Bench(a)
        lock = threading.Lock()
        everybody = [b]
        for directory, conf in zip(a.alt_bin_dir, a.alt_conf, strict=True):
            a2 = argparse.Namespace(**vars(a))
            a2.bin_dir, a2.conf, a2.ids_prefix = directory, conf, None
            everybody.append(Bench(a2))
        out.update(bin_dir=a.bin_dir, conf=a.conf, cni_version=b.ver, chain=[x["type"] for x in b.plugins])

        def warm(n, b=b):
            ns = b.mkns(90000 + n)
            path = "/var/run/netns/" + ns
            c = b.cid(90000 + n)
            r = b.cmd("ADD", c, path)
            b.cmd("DEL", c, path, r.result)
            b.rmns(ns)

        for n in range(a.warmup):
            for each in everybody:
                warm(n, each)
        adds, dels, checks, vbad = [], [], [], []
        all_adds = [adds, *([] for _ in everybody[1:])]
        all_dels = [dels, *([] for _ in everybody[1:])]
        items = [(n, b.cid(n), b.mkns(n)) for n in range(a.runs)]
        res = {}
        try:
            if a.batch or a.add_only:

                def add(it):
                    r = b.cmd("ADD", it[1], "/var/run/netns/" + it[2])
                    with lock:
                        adds.append(r)
                        res[it[0]] = r

                c0 = server_ms()
                w = pool(a.concurrency, items, add)
                if a.server_pid:
                    out["server_cpu_ms_per_add"] = round((server_ms() - c0) / a.runs, 2)
                out["add_phase_s"] = round(w, 3)
                out["adds_per_s"] = round(sum(r.rc == 0 for r in adds) / w, 2)
                for it in items:
                    if res[it[0]].rc == 0:
                        v = b.verify(res[it[0]], it[2])
                        if v:
                            vbad.append(v)
                ips = [x["address"] for r in adds if r.rc == 0 for x in r.result["ips"]]
                out["distinct_ips"] = len(set(ips))
                out["ips"] = len(ips)
                if not a.add_only:

                    def dele(it):
                        r = b.cmd("DEL", it[1], "/var/run/netns/" + it[2], res[it[0]].result)
                        with lock:
                            dels.append(r)

                    c0 = server_ms()
                    w = pool(a.concurrency, items, dele)
                    if a.server_pid:
                        out["server_cpu_ms_per_del"] = round((server_ms() - c0) / a.runs, 2)
                    out["del_phase_s"] = round(w, 3)
                    out["dels_per_s"] = round(sum(r.rc == 0 for r in dels) / w, 2)
                    for it in items:
                        v = b.gone(res[it[0]], it[2])
                        if v:
                            vbad.append(v)
            else:

                def both(it):
                    which = it[0] % len(everybody)
                    b = everybody[which]
                    ns = "/var/run/netns/" + it[2]
                    r = b.cmd("ADD", it[1], ns)
                    v = b.verify(r, it[2]) if r.rc == 0 else ""
                    ck = b.cmd("CHECK", it[1], ns, r.result) if a.check else None
                    d = b.cmd("DEL", it[1], ns, r.result)
                    v = v or (b.gone(r, it[2]) if r.rc == 0 else "")
                    with lock:
                        all_adds[which].append(r)
                        all_dels[which].append(d)
                        if ck:
                            checks.append(ck)
                        if v:
                            vbad.append(v)

                c0 = server_ms()
                out["loop_s"] = round(pool(a.concurrency, items, both), 3)
                if a.server_pid:
                    out["server_cpu_ms_per_pair"] = round((server_ms() - c0) / max(1, len(adds)), 2)
            if a.rss:
                sa, sd = RssSampler(), RssSampler()
                for n in range(a.rss):
                    ns = b.mkns(80000 + n)
                    path = "/var/run/netns/" + ns
                    c = b.cid(80000 + n)
                    r = b.cmd("ADD", c, path, None, sa)
                    b.cmd("DEL", c, path, r.result, sd)
                    b.rmns(ns)
                out["rss_add"] = {"vmhwm_kb": sa.hwm, "peak_sum_rss_kb": sa.peak_sum}
                out["rss_del"] = {"vmhwm_kb": sd.hwm, "peak_sum_rss_kb": sd.peak_sum}
        finally:
            if not a.add_only:
                for it in items:
                    b.rmns(it[2])
        out["add"] = summ(adds)
        out["del"] = summ(dels)
        out["alts"] = [
            {"bin_dir": each.a.bin_dir, "add": summ(their_adds), "del": summ(their_dels)}
            for each, their_adds, their_dels in zip(everybody[1:], all_adds[1:], all_dels[1:], strict=True)
        ]
        if checks:
            out["check"] = summ(checks)
        out["verify_failures"] = len(vbad)
        out["verify_samples"] = list(dict.fromkeys(vbad))[:5]
    out["load_after"] = loadavg()
    s = json.dumps(out, indent=1)
    print(s)
    if a.out:
        open(a.out, "w").write(s + "\n")


if __name__ == "__main__":
    main()
