package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/certs"
	"drtmx/rdma"
)

// eventually waits until a counter of an endpoint is as expected.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func clientLeaf() certs.Leaf { return certs.Leaf{Name: "app", Role: certs.RoleLoader} }

// TestCertificatesThatAreRefused: a typed error and one line at the client, a
// count at the server, and the next good client is served.
func TestCertificatesThatAreRefused(t *testing.T) {
	ca := trialCA(t)
	stranger, err := certs.NewAuthority("stranger", time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	past := certs.Leaf{NotBefore: time.Now().Add(-9 * time.Hour), NotAfter: time.Now().Add(-8 * time.Hour)}
	expired, expiredServer := clientLeaf(), serverLeaf
	expired.NotBefore, expired.NotAfter = past.NotBefore, past.NotAfter
	expiredServer.NotBefore, expiredServer.NotAfter = past.NotBefore, past.NotAfter
	good := issue(t, ca, serverLeaf)
	ours := func(a *certs.Authority, l certs.Leaf) *TLS { // signed by a, trusting the trial authority
		o := *issue(t, a, l)
		o.CA = good.CA
		return &o
	}
	elsewhere := *issue(t, ca, clientLeaf())
	elsewhere.ServerName = "db.example"
	foreignCA := *issue(t, stranger, clientLeaf()) // trusts another authority
	for name, x := range map[string]struct {
		server, client *TLS
		want           error
	}{
		"client of another authority":    {good, ours(stranger, clientLeaf()), ErrUnknownCA},
		"expired client":                 {good, ours(ca, expired), ErrExpired},
		"client with a server's purpose": {good, ours(ca, serverLeaf), nil}, // servers dial each other
		"server of another authority":    {good, &foreignCA, ErrUnknownCA},
		"expired server":                 {ours(ca, expiredServer), issue(t, ca, clientLeaf()), ErrExpired},
		"other server name":              {good, &elsewhere, ErrServerName},
		"server with a client's purpose": {ours(ca, clientLeaf()), issue(t, ca, clientLeaf()), ErrAuth},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, k := listen(t, newProvider(t, Options{TLS: x.server}), "", rdma.AccessRead)
			c, err := newProvider(t, Options{TLS: x.client}).Dial(testContext(t), e.Addr())
			if x.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				mustServe(t, c, k)
				c.Close()
				return
			}
			checkRefusal(t, err, x.want)
			eventually(t, "the server counts the refusal", func() bool { return e.Refused(refusedAuth) == 1 })
			if x.server == good {
				mustServe(t, dial(t, newProvider(t, Options{TLS: issue(t, ca, clientLeaf())}), e), k)
			}
		})
	}
}

func checkRefusal(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || !errors.Is(err, ErrAuth) {
		t.Fatalf("error %v, want %v", err, want)
	}
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("more than one line: %q", err)
	}
}

// TestClientWithoutCertificate does by hand what the provider's client does
// not offer.
func TestClientWithoutCertificate(t *testing.T) {
	ca := trialCA(t)
	p := newProvider(t, Options{TLS: issue(t, ca, serverLeaf)})
	e, _, _ := listen(t, p, "", rdma.AccessRead)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.Cert)
	bare := &Provider{opts: p.opts, client: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}, server: p.server}
	_, err := bare.Dial(testContext(t), e.Addr())
	checkRefusal(t, err, ErrNoCertificate)
	old := &Provider{opts: p.opts, client: &tls.Config{MaxVersion: tls.VersionTLS12, RootCAs: pool}, server: p.server}
	_, err = old.Dial(testContext(t), e.Addr())
	checkRefusal(t, err, ErrAuth)
	eventually(t, "the server counts both", func() bool { return e.Refused(refusedAuth) == 2 })
}

func TestPlainTextMeetsTLS(t *testing.T) {
	secure := newProvider(t, Options{TLS: issue(t, trialCA(t), serverLeaf)})
	plain := newProvider(t, Options{})
	e, _, _ := listen(t, secure, "", rdma.AccessRead)
	_, err := plain.Dial(testContext(t), e.Addr())
	checkRefusal(t, err, ErrAuth)
	eventually(t, "the server counts it", func() bool { return e.Refused(refusedAuth) == 1 })
	e2, _, k := listen(t, plain, "", rdma.AccessRead)
	_, err = secure.Dial(testContext(t), e2.Addr())
	checkRefusal(t, err, ErrAuth)
	eventually(t, "the server counts it", func() bool { return e2.Refused(refusedHandshake) == 1 })
	mustServe(t, dial(t, plain, e2), k)
}

func TestPlainTextStaysOnLoopback(t *testing.T) {
	plain := newProvider(t, Options{})
	if e, err := plain.Listen("0.0.0.0:0", rdma.ListenOptions{}); !errors.Is(err, ErrInsecure) {
		t.Errorf("listen beyond loopback: %v, %v", e, err)
	}
	insecure := newProvider(t, Options{Insecure: true})
	e, err := insecure.Listen("0.0.0.0:0", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if own := ownAddress(); own != "" {
		_, port, _ := net.SplitHostPort(e.Addr())
		addr := net.JoinHostPort(own, port)
		if c, err := plain.Dial(testContext(t), addr); !errors.Is(err, ErrInsecure) {
			t.Errorf("dial beyond loopback: %v, %v", c, err)
		}
		c, err := insecure.Dial(testContext(t), addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// ownAddress is one beyond loopback, or empty.
func ownAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

func TestBadCertificateFiles(t *testing.T) {
	good := issue(t, trialCA(t), serverLeaf)
	other := issue(t, trialCA(t), serverLeaf)
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]TLS{
		"no CA":         {Cert: good.Cert, Key: good.Key},
		"no key":        {CA: good.CA, Cert: good.Cert},
		"missing CA":    {CA: "/no/such", Cert: good.Cert, Key: good.Key},
		"garbage CA":    {CA: garbage, Cert: good.Cert, Key: good.Key},
		"garbage cert":  {CA: good.CA, Cert: garbage, Key: good.Key},
		"another's key": {CA: good.CA, Cert: good.Cert, Key: other.Key},
	} {
		if _, err := New(Options{TLS: &o}); !errors.Is(err, ErrCertificateFile) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHandshakesThatAreRefused: other versions, byte orders and limits, and
// what is no handshake at all.
func TestHandshakesThatAreRefused(t *testing.T) {
	e, _, k := listen(t, newProvider(t, Options{MaxConnections: 1}), "", rdma.AccessRead)
	for name, x := range map[string]struct {
		alter func(*hello)
		want  reason
	}{
		"version":    {func(h *hello) { h.version++ }, reasonVersion},
		"byte order": {func(h *hello) { h.order = 0x0807060504030201 }, reasonOrder},
		"limits":     {func(h *hello) { h.maxRead *= 2 }, reasonLimits},
	} {
		nc, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		h := ourHello()
		x.alter(&h)
		if _, err := nc.Write(h.encode()); err != nil {
			t.Fatal(err)
		}
		w, err := readHello(nc)
		if err != nil || w.reason != x.want || w.reason.err() == nil {
			t.Errorf("%s: answered with %+v, %v", name, w, err)
		}
		nc.Close()
	}
	nc, err := net.Dial("tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = nc.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: somebody who is lost in the network\r\n\r\n"))
	if b, err := io.ReadAll(nc); len(b) != 0 {
		t.Errorf("an HTTP client is answered with %q, %v", b, err)
	}
	nc.Close()
	eventually(t, "all are counted", func() bool { return e.Refused(refusedHandshake) == 4 })

	p := newProvider(t, Options{})
	mustServe(t, dial(t, p, e), k)
	if c, err := p.Dial(testContext(t), e.Addr()); !errors.Is(err, rdma.ErrTooLarge) {
		t.Errorf("one connection too many: %v, %v", c, err)
	}
	eventually(t, "it is counted", func() bool { return e.Refused(refusedRoom) == 1 })
}

// Who does not get through to a host is told of its own deadline, not of an
// address that is bad.
func TestDialKeepsItsDeadline(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	// The queue of connections that nobody accepts takes one; others get no answer.
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := p.Dial(ctx, addr)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("dialing got %v, want that its deadline is over", err)
		}
	}
}
