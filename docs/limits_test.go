package docs

import (
	"fmt"
	"strings"
	"testing"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// The limits in operations.md are those of the code.
func TestLimits(t *testing.T) {
	page := read(t, "operations.md")
	for name, value := range map[string]any{
		"txn.MaxReads": txn.MaxReads, "txn.MaxWrites": txn.MaxWrites, "txn.MaxScanRows": txn.MaxScanRows,
		"txn.MaxProofs": txn.MaxProofs, "txn.MaxCommitBytes": txn.MaxCommitBytes, "txn.MaxResultBytes": txn.MaxResultBytes,
		"server.MaxCallTime": server.MaxCallTime, "server.MaxCallsElsewhere": server.MaxCallsElsewhere,
		"txn.MaxBodyAge": txn.MaxBodyAge, "tables.MaxKeyBytes": tables.MaxKeyBytes, "tables.MaxRowBytes": tables.MaxRowBytes,
		"tables.MaxTables": tables.MaxTables, "tables.MaxColumns": tables.MaxColumns, "tables.MaxText": tables.MaxText,
	} {
		if row := fmt.Sprintf("| `%s` | %v |", name, value); !strings.Contains(page, row) {
			t.Errorf("operations.md has no row %s", row)
		}
	}
}
