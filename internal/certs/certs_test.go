package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSetIsAsAsked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	now := time.Now()
	s := Set{Dir: dir, Hosts: []string{"db-1.example", "127.0.0.1", "::1"}, Clients: []string{"app_1", "app_2=writer/orders/order lines"}, Days: 30}
	files, err := Write(s, now)
	if err != nil || len(files) != 12 {
		t.Fatalf("files %v, %v", files, err)
	}
	pool := x509.NewCertPool()
	ca, _ := os.ReadFile(filepath.Join(dir, CAFile))
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate in ca.pem")
	}
	for _, c := range []struct{ name, role, host string }{
		{"db-1.example", RoleServer, "db-1.example"},
		{"127.0.0.1", RoleServer, "127.0.0.1"},
		{"::1", RoleServer, "::1"},
		{"app_1", RoleLoader, ""},
		{"app_2", RoleWriter, ""},
	} {
		p, err := tls.LoadX509KeyPair(filepath.Join(dir, CertFile(c.name)), filepath.Join(dir, KeyFile(c.name)))
		if err != nil {
			t.Fatal(err)
		}
		leaf, _ := x509.ParseCertificate(p.Certificate[0])
		if leaf.Subject.CommonName != c.name || leaf.Subject.OrganizationalUnit[0] != c.role {
			t.Errorf("%s: subject %v", c.name, leaf.Subject)
		}
		if tables := strings.Join(Tables(leaf), ","); (tables == "orders,order lines") != (c.name == "app_2") || tables != "" && c.name != "app_2" {
			t.Errorf("%s may use the tables %q", c.name, tables)
		}
		o := x509.VerifyOptions{Roots: pool, DNSName: c.host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, CurrentTime: now.AddDate(0, 0, 29)}
		if _, err := leaf.Verify(o); (err == nil) != (c.role == RoleServer) {
			t.Errorf("%s as a server: %v", c.name, err)
		}
		o.DNSName, o.KeyUsages = "", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if _, err := leaf.Verify(o); err != nil {
			t.Errorf("%s as a client: %v", c.name, err)
		}
		if o.CurrentTime = now.AddDate(0, 0, 31); true {
			if _, err := leaf.Verify(o); err == nil {
				t.Errorf("%s is valid after its days", c.name)
			}
		}
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil || strings.HasSuffix(f, "-key.pem") && st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st.Mode(), err)
		}
	}
}

func TestSetOverwritesNothing(t *testing.T) {
	for _, f := range []string{CAFile, caKeyFile, CertFile("a"), KeyFile("c")} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, f), []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Write(Set{Dir: dir, Hosts: []string{"a", "b"}, Clients: []string{"c"}, Days: 1}, time.Now())
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), f) {
			t.Errorf("%s: %v", f, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: %d files were written", f, len(left)-1)
		}
	}
}

func TestBadSets(t *testing.T) {
	dir := t.TempDir()
	for name, s := range map[string]Set{
		"no directory":       {Hosts: []string{"a"}, Days: 1},
		"no days":            {Dir: dir, Hosts: []string{"a"}},
		"days for ever":      {Dir: dir, Hosts: []string{"a"}, Days: MaxDays + 1},
		"no host":            {Dir: dir, Days: 1},
		"empty host":         {Dir: dir, Hosts: []string{""}, Days: 1},
		"path":               {Dir: dir, Hosts: []string{"../a"}, Days: 1},
		"port":               {Dir: dir, Hosts: []string{"a:1"}, Days: 1},
		"same twice":         {Dir: dir, Hosts: []string{"a", "a"}, Days: 1},
		"no such role":       {Dir: dir, Hosts: []string{"a"}, Clients: []string{"c=server"}, Days: 1},
		"table without name": {Dir: dir, Hosts: []string{"a"}, Clients: []string{"c=reader/"}, Days: 1},
		"client is host":     {Dir: dir, Hosts: []string{"a"}, Clients: []string{"a"}, Days: 1},
		"the authority":      {Dir: dir, Hosts: []string{"ca"}, Days: 1},
		"another's key file": {Dir: dir, Hosts: []string{"a", "a-key"}, Days: 1},
	} {
		if _, err := Write(s, time.Now()); !errors.Is(err, ErrOptions) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files were written", len(left))
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(Set{Dir: file, Hosts: []string{"a"}, Days: 1}, time.Now()); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file for a directory: %v", err)
	}
}
