package serve_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"drtmx/internal/testseed"
	"drtmx/server/metrics"
	"drtmx/server/serve"
	"drtmx/server/serve/testdata/bank"
	"drtmx/tables"
	"drtmx/txn"
)

// TestProgram: a program of ten lines is a server of its own tables, with the
// flags and the metrics of drtmx, and a client in another process uses it.
func TestProgram(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bankd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./testdata/bankd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), bin, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "bankd on drtmx ") {
		t.Errorf("version: %s, %v", out, err)
	}
	if out, err := exec.CommandContext(t.Context(), bin, "tpcc").CombinedOutput(); err == nil || !strings.Contains(string(out), "want serve") && !strings.Contains(string(out), "serve") {
		t.Errorf("tpcc: %s, %v", out, err)
	}
	t.Run("memory", func(t *testing.T) { testProgram(t, bin) })
	t.Run("hosts", func(t *testing.T) {
		testProgram(t, bin, "--data-dir", t.TempDir(), "--replicas", "2", "--memory", "256MiB")
	})
}

func testProgram(t *testing.T, bin string, more ...string) {
	t.Helper()
	dir := t.TempDir()
	server := exec.CommandContext(t.Context(), bin, append([]string{"serve", "--runtime-dir", dir, "--servers", "2", "--metrics", "127.0.0.1:0"}, more...)...)
	said, err := server.StderrPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	url := waitReady(t, said)
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	useBank(ctx, t, dir)
	if c, err := serve.Connect(ctx, "drtmx+shm://"+dir, txn.Config{}); err != nil {
		t.Error(err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
	scrape(ctx, t, url)
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("bankd serve, interrupted: %v", err)
	}
	if _, err := serve.Connect(t.Context(), dir, txn.Config{}); err == nil {
		t.Error("a cluster that has ended is still found")
	}
}

// waitReady reads what the server says until it is ready, and returns the
// address of its metrics.
func waitReady(t *testing.T, said io.Reader) (url string) {
	t.Helper()
	lines := bufio.NewScanner(said)
	at := regexp.MustCompile(`metrics at (\S+)`)
	for lines.Scan() {
		t.Log(lines.Text())
		if m := at.FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
		if strings.Contains(lines.Text(), "ready") {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return url
		}
	}
	t.Fatal("bankd is not ready")
	return ""
}

func useBank(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	db, err := serve.Connect(ctx, dir, txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	account := db.Catalog().MustTable("account")
	key := tables.Num(7)
	if err := db.Update(ctx, func(x *txn.Txn) error {
		row := account.NewRow()
		row.SetInt(account.Field("balance"), 100)
		return x.Insert(account, key, row)
	}); err != nil {
		t.Fatal(err)
	}
	home, err := db.Home(account, key)
	if err != nil {
		t.Fatal(err)
	}
	withdraw := func(key uint64) error {
		args := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, key), 60)
		_, err := db.Call(ctx, home, "withdraw", args)
		return err
	}
	if err := withdraw(7); err != nil {
		t.Error(err)
	}
	if err := withdraw(7); !errors.Is(err, bank.ErrPoor) {
		t.Errorf("the second withdrawal: %v", err)
	}
	var e *txn.Error
	if err := withdraw(8); !errors.As(err, &e) || !errors.Is(err, txn.ErrNotFound) || e.Table != "account" || e.Key != tables.Num(8) {
		t.Errorf("a withdrawal from an account that does not exist: %v", err)
	}
	r := prometheus.NewPedanticRegistry()
	servers := metrics.Servers(ctx, db.DB)
	r.MustRegister(servers, metrics.Client("shm", db.DB, nil))
	if n, err := testutil.GatherAndCount(r, "drtmx_server_up", "drtmx_client_index_lookups_total"); err != nil || n < 4 {
		t.Errorf("%d series of an embedder's collectors, %v", n, err)
	}
	if err := servers.Ready(); err != nil && !strings.Contains(err.Error(), "is not loaded") {
		t.Error(err)
	}
	st, err := db.ServerStats(ctx)
	if err != nil || len(st) != 2 || st[0].Calls+st[1].Calls == 0 || st[0].Partitions[0].LimitBytes == 0 {
		t.Errorf("statistics: %+v, %v", st, err)
	}
}

func scrape(ctx context.Context, t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), `table="account"`) {
		t.Errorf("metrics of bankd have no table account (%d bytes, %v)", len(b), err)
	}
}
