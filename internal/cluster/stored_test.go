package cluster

import (
	"slices"
	"testing"

	"drtmx/server"
)

// TestStoredAtOneHost: what a host has is its own data server, the others that it has
// taken over, and copies. Other hosts are elsewhere. What it has taken over stays as long
// as the store says so.
func TestStoredAtOneHost(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 2)
	h.fill(0, 20)
	dir := h.options(1).DataDir
	check := func(want ...StoredDir) {
		t.Helper()
		all, err := Stored(dir)
		if err != nil || !slices.Equal(all, want) {
			t.Errorf("%+v, %v; want %+v", all, err, want)
		}
	}
	own := server.ServerDir(dir, 1)
	check(StoredDir{ServerDir{0, serverCopyDir(own, 0)}, own, true}, StoredDir{ServerDir{1, own}, own, false})
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Fatal(err)
	}
	h.hosts[0] = nil
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.fill(20, 40)
	if err := h.hosts[1].others.sweep(0); err != nil { // as if it had an older map
		t.Error(err)
	}
	check(StoredDir{ServerDir{0, homeDir(own, 0)}, homeDir(own, 0), false}, StoredDir{ServerDir{1, own}, own, false})
}
