// Cuts a mounted file system off from its disk, as a loss of power does: what was not made durable is lost. Then only unmounting
// makes sense. (EXT4_IOC_SHUTDOWN of Linux's fs/ext4/ext4.h, with EXT4_GOING_FLAGS_NOLOGFLUSH: not even the journal is written.)
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	uint32_t without_journal = 2;
	int fd = argc == 2 ? open(argv[1], O_RDONLY | O_DIRECTORY) : -1;
	if (fd < 0 || ioctl(fd, _IOR('X', 125, uint32_t), &without_journal)) {
		perror("cut_disk");
		return 1;
	}
	return 0;
}
