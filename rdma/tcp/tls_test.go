package tcp

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"drtmx/internal/certs"
	"drtmx/rdma/rdmatest"
)

// trial is an authority, and what it signs, for the tests of a run.
var trial = sync.OnceValues(func() (*certs.Authority, error) {
	return certs.NewAuthority("trial", time.Now(), time.Now().Add(24*time.Hour))
})

// issue writes a certificate signed by ca and returns the names of its files.
func issue(t testing.TB, ca *certs.Authority, l certs.Leaf) *TLS {
	t.Helper()
	if l.NotAfter.IsZero() {
		l.NotBefore, l.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	p, err := ca.Sign(l)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := &TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for f, b := range map[string][]byte{o.CA: ca.Cert, o.Cert: p.Cert, o.Key: p.Key} {
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func trialCA(t testing.TB) *certs.Authority {
	t.Helper()
	ca, err := trial()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serverLeaf is a data server of this machine.
var serverLeaf = certs.Leaf{Name: "server", Role: certs.RoleServer, Hosts: []string{"127.0.0.1", "localhost"}}

func tlsFixture(t testing.TB) rdmatest.Fixture {
	server := issue(t, trialCA(t), serverLeaf)
	client := issue(t, trialCA(t), certs.Leaf{Name: "app", Role: certs.RoleLoader})
	f := fixture(Options{TLS: server})(t)
	f.Dialer = newProvider(t, Options{TLS: client})
	f.Allocs = tlsAllocs
	return f
}

// tlsAllocs is what crypto/tls allocates for a round: a reader for each record
// at either side.
const tlsAllocs = 2

func TestConformanceOverTLS(t *testing.T) { rdmatest.Run(t, tlsFixture) }
