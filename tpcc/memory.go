package tpcc

// rowBytesMin has, for each table, the least memory in bytes that a row takes at a
// data server: its blocks or its share of a leaf, its entries in indexes, and its
// share of the indexes. TestMemory compares it with the memory of real loads.
var rowBytesMin = [tableCount]int64{
	tabCustomer:  795 + 119, // with its entry by last name
	tabHistory:   97,
	tabNewOrder:  44,
	tabOrders:    91 + 53, // with its entry by customer
	tabOrderLine: 97,
	tabItem:      155,
	tabStock:     411,
}

// MemoryMin returns the least memory, in bytes, that the initial population takes in
// one of so many partitions. With the specification's cardinalities it really takes 1
// to 4 % more.
func (c LoadConfig) MemoryMin(partition, partitions int) int64 {
	s := c.Scale.orDefault()
	warehouses := (c.Warehouses - int64(partition) + int64(partitions) - 1) / int64(partitions) // warehouse w is in partition (w-1) mod partitions
	return warehouses*s.warehouseBytesMin() + s.Items*rowBytesMin[tabItem]
}

// WarehousesMax returns the most warehouses of a scale that fit into so many
// partitions with so many bytes each.
func (s Scale) WarehousesMax(partitions int, bytes int64) int64 {
	s = s.orDefault()
	return max(bytes-s.Items*rowBytesMin[tabItem], 0) / s.warehouseBytesMin() * int64(partitions)
}

func (s Scale) warehouseBytesMin() int64 {
	const meanLines = (MinLines + MaxLines) / 2
	customer := rowBytesMin[tabCustomer] + rowBytesMin[tabHistory] + rowBytesMin[tabOrders] + meanLines*rowBytesMin[tabOrderLine]
	return Districts*(s.Customers*customer+s.Undelivered*rowBytesMin[tabNewOrder]) + s.Items*rowBytesMin[tabStock]
}
