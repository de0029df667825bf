package verbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"drtmx/rdma"
)

// deviceAddr returns the first IPv4 address of a network interface of an RDMA
// device: of the named one, or of the first that has any.
func deviceAddr(sys, device string, addrsOf func(netdev string) []netip.Addr) (netip.Addr, error) {
	names := []string{device}
	if device == "" {
		entries, err := os.ReadDir(sys)
		if err != nil || len(entries) == 0 {
			return netip.Addr{}, fmt.Errorf("verbs: no RDMA device in %s: %w", sys, rdma.ErrUnsupported)
		}
		names = names[:0]
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(sys, name)); err != nil {
			return netip.Addr{}, fmt.Errorf("verbs: no RDMA device %q in %s: %w", name, sys, rdma.ErrAddress)
		}
		for _, dev := range netdevsOf(filepath.Join(sys, name)) {
			for _, a := range addrsOf(dev) {
				if a.Unmap().Is4() {
					return a.Unmap(), nil
				}
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("verbs: no RDMA device of %v has an interface with an IPv4 address: %w", names, rdma.ErrAddress)
}

// netdevsOf lists the network interfaces of a device: those its GIDs belong
// to, for RoCE, and those of its hardware, for IPoIB.
func netdevsOf(dir string) []string {
	var devs []string
	add := func(name string) {
		if name != "" && !slices.Contains(devs, name) {
			devs = append(devs, name)
		}
	}
	gids, _ := filepath.Glob(filepath.Join(dir, "ports", "*", "gid_attrs", "ndevs", "*"))
	for _, f := range gids {
		if b, err := os.ReadFile(f); err == nil { // entries not in use cannot be read
			add(strings.TrimSpace(string(b)))
		}
	}
	entries, _ := os.ReadDir(filepath.Join(dir, "device", "net"))
	for _, e := range entries {
		add(e.Name())
	}
	return devs
}

// parseAddr parses HOST:PORT, and looks names up. Without a host the
// address is that of the device; "" also leaves the port to the system.
func parseAddr(ctx context.Context, addr string, device func() (netip.Addr, error)) (netip.AddrPort, error) {
	bad := func(err error) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("verbs: address %q (want HOST:PORT): %w: %w", addr, rdma.ErrAddress, err)
	}
	if addr == "" {
		addr = ":0"
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return bad(err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return bad(err)
	}
	if host == "" {
		ip, err := device()
		return netip.AddrPortFrom(ip, uint16(port)), err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(ip, uint16(port)), nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if ctx.Err() != nil {
		return netip.AddrPort{}, ctx.Err()
	}
	if err != nil || len(ips) == 0 {
		return netip.AddrPort{}, fmt.Errorf("verbs: address %q: %w: %w", addr, rdma.ErrNotResolved, err)
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(port)), nil
}
